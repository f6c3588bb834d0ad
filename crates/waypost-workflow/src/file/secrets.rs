//! `secrets`: names of variables with masked values, from the environment of the caller or from files.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use super::checker::Checker;
use super::fields::{Fields, KeySet};
use super::node::{Kind, Node};
use super::settings::{self, Variable};

/// Largest file of a secret; a key in PEM has a few KiB.
const FILE_BYTES_MAX: u64 = 64 * 1024;
const HELP: &str =
    "write names, and files by name: `secrets: [API_TOKEN, { DB_PASSWORD: { file: /run/secrets/db } }]`";

static FILE: KeySet = KeySet { what: "a secret", keys: &["file"], later: &[], elsewhere: &[] };

/// Secrets of a workflow.
#[derive(Debug, Clone, Default)]
pub(super) struct Secrets {
    /// In the order of the file.
    pub(super) names: Vec<String>,
    /// Files of secrets, by name.
    pub(super) files: BTreeMap<String, PathBuf>,
}

impl Secrets {
    /// Adds the secrets of another workflow.
    pub(super) fn extend(&mut self, names: &[String], files: &BTreeMap<String, PathBuf>) {
        for name in names.iter().filter(|name| !self.names.contains(name)).cloned().collect::<Vec<_>>() {
            self.files.extend(files.get(&name).map(|file| (name.clone(), file.clone())));
            self.names.push(name);
        }
    }
}

/// Reads `secrets`. `layers`: variables that the file sets.
pub(super) fn secrets(checker: &mut Checker<'_>, node: &Node, layers: &[&[Variable<'_>]]) -> Secrets {
    let mut secrets = Secrets::default();
    let items: Vec<&Node> = match &node.kind {
        Kind::List(items) => items.iter().collect(),
        Kind::Text(_) => vec![node],
        _ => {
            checker.mismatch(node, "secrets", "a list of names", HELP);
            return secrets;
        }
    };
    for item in items {
        let (name, file) = match &item.kind {
            Kind::Map(entries) => match entries.as_slice() {
                [(name, file)] => (Some(name.key_text().to_owned()), Some(file)),
                _ => {
                    checker.mismatch(item, "a secret", "one name with its file", HELP);
                    continue;
                }
            },
            _ => (checker.filled_text(item, "secrets"), None),
        };
        let Some(name) = name.filter(|name| settings::variable_name(checker, item, name)) else { continue };
        if secrets.names.contains(&name) {
            checker.wrong(item, format!("duplicate `{name}` in `secrets`"), "remove one");
        } else if layers.iter().copied().flatten().any(|(variable, ..)| *variable == name) {
            let help = "secrets come from the caller's environment: remove the name from `env`";
            checker.wrong(item, format!("`{name}` is a secret, but `env` sets it too"), help);
        } else {
            if let Some(file) = file {
                secrets.files.extend(path(checker, file).map(|path| (name.clone(), path)));
            }
            secrets.names.push(name);
        }
    }
    secrets
}

/// Reads the path of a secret; a relative path starts at the folder of the workflow file.
fn path(checker: &mut Checker<'_>, node: &Node) -> Option<PathBuf> {
    let fields = Fields::of(checker, node, &FILE)?;
    let Some(file) = fields.get("file") else {
        checker.mismatch(node, "a secret", "a map with `file`", HELP);
        return None;
    };
    let path = checker.filled_text(file, "file")?;
    Some(checker.source.path.parent().unwrap_or(Path::new(".")).join(path))
}

/// Reads a secret's file, without the trailing newline; `None` if the file is unreadable or larger than 64
/// KiB.
pub fn read_secret(path: &Path) -> Option<OsString> {
    let mut value = Vec::new();
    std::fs::File::open(path).ok()?.take(FILE_BYTES_MAX + 1).read_to_end(&mut value).ok()?;
    if value.last() == Some(&b'\n') {
        value.pop();
    }
    (value.len() as u64 <= FILE_BYTES_MAX && !value.contains(&0)).then(|| OsString::from_vec(value))
}
