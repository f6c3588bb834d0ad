//! `evidence`: claims that show the success of a step.
//!
//! The first key of a claim has the kind and the subject; the other keys are expectations. Errors known
//! before a run are reported here: a claim that can never hold, and a list without a condition.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use serde_json::Value;
use waypost::evidence::{ARTIFACT_EXISTS, CLAIMS_MAX, COMMAND_EXIT, FILE_SHA256, is_pattern};
use waypost::record::{Occasion, Severity, Terms};
use waypost_evidence::{COMMAND, DB_ROW, EXEC, GIT, JSON_VALUE, NETWORK_REACHABLE, PROCESS_EXISTS};

use super::about::About;
use super::body::holds_expression;
use super::checker::Checker;
use super::expectation::{Wanted, codes, expectations, literal};
use super::fields::{Fields, KeySet};
use super::node::{Kind, Node};
use super::remote::REMOTE;
use crate::expr::Template;
use crate::suggest::{listed, nearest};

pub(super) static EVIDENCE: KeySet =
    KeySet { what: "`evidence`", keys: &["at_least", "any", "of"], later: &[], elsewhere: &[] };

/// Makes the key set of a kind: its own keys, and the keys of every claim.
macro_rules! keys {
    ($what:literal: $($own:literal),+; $($later:literal),*) => {
        KeySet {
            what: $what,
            keys: &[
                $($own,)+ "name", "not", "timeout", "within", "at", "severity", "sensitive", "metadata",
            ],
            later: &[$($later),*],
            elsewhere: &[],
        }
    };
}

pub(super) use keys;

pub(super) static FILE: KeySet = keys!(
    "`file` evidence": "file", "type", "size", "mode", "contains", "matches", "json", "lines", "newer_than",
    "count", "absent";
);
pub(super) static SHA256: KeySet = keys!("`sha256` evidence": "sha256", "is", "fast";);
pub(super) static EXIT: KeySet = keys!("`exit` evidence": "exit";);
pub(super) static PORT: KeySet = keys!("`port` evidence": "port", "listening";);
pub(super) static JSON: KeySet = keys!("`json` evidence": "json", "path", "value";);
pub(super) static COMMANDED: KeySet =
    keys!("`command` evidence": "command", "exit", "stdout", "stderr", "env";);
pub(super) static EXECUTED: KeySet = keys!("`exec` evidence": "exec", "with", "env";);
pub(super) static PROCESS: KeySet =
    keys!("`process` evidence": "process", "pid_file", "args", "user", "count";);
pub(super) static REPOSITORY: KeySet = keys!("`git` evidence": "git", "head", "clean";);
pub(super) static SQLITE: KeySet =
    keys!("`sqlite` evidence": "sqlite", "table", "where", "values", "count", "query", "equals";);

/// Kind of evidence.
#[derive(Debug)]
pub struct KindOfEvidence {
    /// Key in the file.
    pub key: &'static str,
    /// Recorded name of the kind.
    pub recorded: &'static str,
    /// Subject type of the claims.
    pub about: About,
    pub(super) set: &'static KeySet,
    /// Possible expectations.
    pub(super) expectations: &'static [(&'static str, Wanted)],
}

/// Kinds of evidence, except those in [`REMOTE`].
static KINDS: [KindOfEvidence; 10] = [
    KindOfEvidence {
        key: "file",
        recorded: ARTIFACT_EXISTS,
        about: About::Path,
        set: &FILE,
        expectations: &[
            ("type", Wanted::Word(&["file", "directory", "symlink", "any"])),
            ("size", Wanted::Size),
            ("mode", Wanted::Mode),
            ("contains", Wanted::Texts),
            ("matches", Wanted::Pattern),
            ("json", Wanted::Paths),
            ("lines", Wanted::Count),
            ("newer_than", Wanted::Older),
            ("count", Wanted::Count),
            ("absent", Wanted::True),
        ],
    },
    KindOfEvidence {
        key: "sha256",
        recorded: FILE_SHA256,
        about: About::Path,
        set: &SHA256,
        expectations: &[("is", Wanted::Digest)],
    },
    KindOfEvidence { key: "exit", recorded: COMMAND_EXIT, about: About::Step, set: &EXIT, expectations: &[] },
    KindOfEvidence {
        key: "port",
        recorded: NETWORK_REACHABLE,
        about: About::Port,
        set: &PORT,
        expectations: &[("listening", Wanted::Truth)],
    },
    KindOfEvidence {
        key: "json",
        recorded: JSON_VALUE,
        about: About::Path,
        set: &JSON,
        expectations: &[("path", Wanted::Path), ("value", Wanted::Fit)],
    },
    KindOfEvidence {
        key: "sqlite",
        recorded: DB_ROW,
        about: About::Path,
        set: &SQLITE,
        expectations: &[
            ("table", Wanted::Text),
            ("where", Wanted::Columns),
            ("values", Wanted::Columns),
            ("count", Wanted::Count),
            ("query", Wanted::Text),
            ("equals", Wanted::Fit),
        ],
    },
    KindOfEvidence {
        key: "command",
        recorded: COMMAND,
        about: About::Program,
        set: &COMMANDED,
        expectations: &[
            ("exit", Wanted::Code),
            ("stdout", Wanted::Compared),
            ("stderr", Wanted::Compared),
            ("env", Wanted::Variables),
        ],
    },
    KindOfEvidence {
        key: "exec",
        recorded: EXEC,
        about: About::Program,
        set: &EXECUTED,
        expectations: &[("with", Wanted::Map), ("env", Wanted::Variables)],
    },
    KindOfEvidence {
        key: "process",
        recorded: PROCESS_EXISTS,
        about: About::Process,
        set: &PROCESS,
        expectations: &[
            ("pid_file", Wanted::File),
            ("args", Wanted::Compared),
            ("user", Wanted::User),
            ("count", Wanted::Count),
        ],
    },
    KindOfEvidence {
        key: "git",
        recorded: GIT,
        about: About::Path,
        set: &REPOSITORY,
        expectations: &[("head", Wanted::Text), ("clean", Wanted::Truth)],
    },
];

/// Evidence of a step: claims, and how many must hold.
#[derive(Debug, Clone)]
pub struct Evidence {
    /// How many claims must hold; `None` means all.
    pub at_least: Option<u32>,
    /// Claims; at least one.
    pub claims: Vec<ClaimTemplate>,
}

/// Claim as written in the file.
#[derive(Debug, Clone)]
pub struct ClaimTemplate {
    /// Kind.
    pub kind: &'static KindOfEvidence,
    /// Subject; `None` for the step.
    pub subject: Option<Template>,
    /// Expectation; `None` if pinned when the step ends.
    pub expect: Option<Expected>,
    /// Name given by the user.
    pub name: Option<String>,
    /// Terms of the check: when, how, and with which severity.
    pub terms: Terms,
}

/// Value with possible expressions.
#[derive(Debug, Clone)]
pub enum Expected {
    /// Literal value.
    Plain(Value),
    /// Result of the expressions, treated as data: never as an operator of the text's language.
    Filled(Template, Language),
    /// All of these.
    List(Vec<Self>),
    /// All of these, by name.
    Map(Vec<(String, Self)>),
}

/// Language of an expectation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// Literal text.
    Text,
    /// Value, comparison or regular expression.
    Comparison,
    /// Size, or a comparison with a size.
    Size,
    /// Regular expression.
    Pattern,
    /// Path.
    Path,
}

impl Expected {
    /// Returns the texts with expressions.
    pub(crate) fn templates(&self) -> Vec<&Template> {
        match self {
            Self::Plain(_) => Vec::new(),
            Self::Filled(template, _) => vec![template],
            Self::List(items) => items.iter().flat_map(Self::templates).collect(),
            Self::Map(entries) => entries.iter().flat_map(|(_, value)| value.templates()).collect(),
        }
    }
}

impl ClaimTemplate {
    /// Returns the variables passed by name to the claim's program.
    pub(crate) fn variables(&self) -> Vec<String> {
        let Some(Expected::Map(entries)) = &self.expect else { return Vec::new() };
        let env = entries.iter().find(|(name, _)| name == "env");
        match env {
            Some((_, Expected::Plain(Value::Array(names)))) => {
                names.iter().filter_map(Value::as_str).map(str::to_owned).collect()
            }
            Some((_, Expected::Plain(Value::String(name)))) => vec![name.clone()],
            _ => Vec::new(),
        }
    }
}

/// Returns the variables read by shell code, as `$NAME` and `${NAME`.
pub(crate) fn variables_in(code: &str) -> impl Iterator<Item = &str> {
    code.split('$').skip(1).filter_map(|rest| {
        let rest = rest.strip_prefix('{').unwrap_or(rest);
        let rest = rest.strip_prefix('#').unwrap_or(rest);
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let name = &rest[..end.unwrap_or(rest.len())];
        (!name.is_empty() && !name.starts_with(|letter: char| letter.is_ascii_digit())).then_some(name)
    })
}

impl Evidence {
    /// Returns the exit codes of success in addition to 0: the numbers in claims about the exit code.
    pub(crate) fn codes(&self) -> Vec<u8> {
        let claims =
            self.claims.iter().filter(|claim| claim.kind.recorded == COMMAND_EXIT && !claim.terms.not);
        let codes = claims.filter_map(|claim| match &claim.expect {
            Some(Expected::List(codes)) => Some(codes),
            _ => None,
        });
        let number = |code: &Expected| match code {
            Expected::Plain(code) => code.as_u64().and_then(|code| u8::try_from(code).ok()),
            _ => None,
        };
        codes.flatten().filter_map(number).collect()
    }

    /// Returns the texts that may have expressions.
    pub(super) fn templates(&self) -> impl Iterator<Item = &Template> {
        self.claims
            .iter()
            .flat_map(|claim| claim.subject.iter().chain(claim.expect.iter().flat_map(Expected::templates)))
    }
}

/// Evidence as written in the file, with the places of its texts.
#[derive(Debug)]
pub(super) struct EvidenceDraft<'n> {
    pub(super) evidence: Evidence,
    pub(super) texts: Vec<(Template, &'n Node)>,
    /// Shell code of claims, with the variables passed by name.
    pub(super) commands: Vec<CommandDraft<'n>>,
}

/// Command of a claim, its place, and the variables passed by name.
pub(super) type CommandDraft<'n> = (Template, &'n Node, Vec<String>);

/// Reads `evidence`.
pub(super) fn evidence<'n>(checker: &mut Checker<'_>, node: &'n Node) -> Option<EvidenceDraft<'n>> {
    let (claims_node, at_least) = match &node.kind {
        Kind::List(_) => (node, None),
        Kind::Map(entries) => {
            if let Some((key, _)) = entries.iter().find(|(key, _)| kind_of(key.key_text()).is_some()) {
                let help = format!("begin each claim with `- `: `evidence: [ {{ {}: … }} ]`", key.key_text());
                checker.wrong(key, "`evidence` is a list of claims", &help);
                return None;
            }
            rule(checker, node)?
        }
        _ => {
            let help = "write `evidence: [ { file: out.txt } ]`";
            checker.mismatch(node, "evidence", "a list of claims", help);
            return None;
        }
    };
    let Kind::List(items) = &claims_node.kind else {
        checker.mismatch(claims_node, "of", "begin each claim with `- `", "begin every claim with `- `");
        return None;
    };
    if items.is_empty() || items.len() > CLAIMS_MAX {
        let message = match items.len() {
            0 => "`evidence` has no claim".to_owned(),
            count => format!("`evidence` has {count} claims, the maximum is {CLAIMS_MAX}"),
        };
        checker.wrong(claims_node, message, "add a claim: `- file: out.txt`");
        return None;
    }
    let mut texts = Vec::new();
    let claims: Vec<ClaimTemplate> =
        items.iter().filter_map(|item| claim(checker, item, &mut texts)).collect();
    if claims.len() < items.len() {
        return None;
    }
    let counting = claims.iter().filter(|claim| claim.terms.severity == Severity::Fail).count();
    if counting == 0 {
        let help = "remove `severity: warn` from one claim, or remove the evidence";
        checker.wrong(claims_node, "`evidence` needs a claim without `severity: warn`", help);
        return None;
    }
    if let Some((at_least, place)) = at_least.filter(|(least, _)| *least as usize > counting) {
        let message = format!("`at_least: {at_least}` can never hold with {counting} claims");
        checker.wrong(place, message, &format!("write a number from 1 to {counting}"));
        return None;
    }
    let commands = claims.iter().zip(items).filter_map(|(claim, item)| command(claim, item)).collect();
    if at_least.is_some() {
        refuse_doubles(checker, items);
    }
    let evidence = Evidence { at_least: at_least.map(|(least, _)| least), claims };
    Some(EvidenceDraft { evidence, texts, commands })
}

/// Reports duplicate claims: with `at_least`, a claim must not count twice under different names.
fn refuse_doubles(checker: &mut Checker<'_>, items: &[Node]) {
    let mut seen: Vec<Value> = Vec::new();
    for item in items {
        let mut says = item.to_json();
        if let Value::Object(map) = &mut says {
            for aside in ["name", "metadata", "timeout", "within"] {
                map.shift_remove(aside);
            }
            // A path has many spellings.
            if let Some((key, Value::String(path))) = map.iter_mut().next()
                && kind_of(key).is_some_and(|kind| kind.about == About::Path)
            {
                let parts = Path::new(&*path).components().filter(|part| *part != Component::CurDir);
                *path = parts.collect::<PathBuf>().to_string_lossy().into_owned();
            }
        }
        if seen.contains(&says) {
            checker.wrong(item, "duplicate claim: it would count twice", "remove one of the two");
        }
        seen.push(says);
    }
}

/// Returns the shell code of a claim.
fn command<'n>(claim: &ClaimTemplate, node: &'n Node) -> Option<CommandDraft<'n>> {
    let subject = claim.subject.clone().filter(|_| claim.kind.recorded == COMMAND)?;
    let Kind::Map(entries) = &node.kind else { return None };
    Some((subject, &entries.first()?.1, claim.variables()))
}

/// Claims, and how many must hold.
type Rule<'n> = (&'n Node, Option<(u32, &'n Node)>);

fn rule<'n>(checker: &mut Checker<'_>, node: &'n Node) -> Option<Rule<'n>> {
    let fields = Fields::of(checker, node, &EVIDENCE)?;
    let at_least = match (fields.get("at_least"), fields.get("any")) {
        (Some(_), Some(place)) => {
            checker.wrong(place, "`any` conflicts with `at_least`", "remove `any`");
            return None;
        }
        (Some(place), None) => {
            let count = checker.integer(place, "at_least", 1..=CLAIMS_MAX as u64)?;
            Some((u32::try_from(count).unwrap_or(u32::MAX), place))
        }
        (None, Some(place)) => match checker.truth(place, "any")? {
            true => Some((1, place)),
            false => {
                checker.wrong(place, "`any: false` has no effect", "remove the key: all claims must hold");
                return None;
            }
        },
        (None, None) => None,
    };
    match fields.get("of") {
        Some(of) => Some((of, at_least)),
        None if fields.has_any(&["of"]) => None,
        None => {
            checker.wrong(
                node,
                "`evidence` has no claims",
                "add `of:` with claims, such as `- file: out.txt`",
            );
            None
        }
    }
}

fn kinds() -> impl Iterator<Item = &'static KindOfEvidence> {
    KINDS.iter().chain(&REMOTE)
}

fn kind_of(key: &str) -> Option<&'static KindOfEvidence> {
    kinds().find(|kind| kind.key == key)
}

fn claim<'n>(
    checker: &mut Checker<'_>,
    node: &'n Node,
    texts: &mut Vec<(Template, &'n Node)>,
) -> Option<ClaimTemplate> {
    let help = "write `- file: out.txt`";
    let Kind::Map(entries) = &node.kind else {
        checker.wrong(node, format!("a claim is a map, not {}", node.described()), help);
        return None;
    };
    let Some((key, subject)) = entries.first() else {
        checker.wrong(node, "a claim names its kind and its subject", help);
        return None;
    };
    let Some(kind) = kind_of(key.key_text()) else {
        no_kind(checker, key, entries);
        return None;
    };
    let fields = Fields::of(checker, node, kind.set)?;
    let before = checker.problems.count();
    let terms = terms(checker, &fields);
    let name = fields.get("name").and_then(|node| checker.filled_text(node, "name"));
    let mut claim =
        ClaimTemplate { kind, subject: None, expect: None, name, terms: terms.unwrap_or_default() };
    if kind.key == "exit" {
        claim.expect = codes(checker, subject, texts);
    } else {
        let text = checker.template(subject, kind.key)?;
        if text.is_plain() {
            literal(checker, kind, subject, text.as_str());
        }
        texts.push((text.clone(), subject));
        claim.subject = Some(text);
        claim.expect = expectations(checker, (kind, node), &fields, texts);
        if kind.recorded == ARTIFACT_EXISTS {
            refuse_count_of_one(checker, claim.subject.as_ref(), &fields);
        }
    }
    if kind.recorded == FILE_SHA256 {
        claim.terms.fast = fast(checker, &fields);
    }
    if claim.expect.is_none() && matches!(kind.recorded, FILE_SHA256 | GIT) {
        refuse_unpinnable(checker, &claim.terms, &fields);
    }
    (checker.problems.count() == before).then_some(claim)
}

/// Reports `count` for a single file: only a pattern can match several files.
fn refuse_count_of_one(checker: &mut Checker<'_>, subject: Option<&Template>, fields: &Fields<'_>) {
    let Some(subject) = subject.filter(|subject| !subject.written().any(is_pattern)) else { return };
    if let Some(place) = fields.get("count") {
        let message = format!("`count` needs a pattern, and `{}` names a single file", subject.as_str());
        checker.wrong(place, message, "write a pattern such as `out/*.csv`, or remove `count`");
    }
}

/// Returns whether a pinned file is trusted while its size, times and inode are unchanged.
fn fast(checker: &mut Checker<'_>, fields: &Fields<'_>) -> bool {
    let Some(place) = fields.get("fast") else { return false };
    if let (Some(true), Some(_)) = (checker.truth(place, "fast"), fields.get("is")) {
        let help = "remove `is` or `fast`";
        checker.wrong(place, "`fast` conflicts with `is`: only a pinned value has a stamp", help);
    }
    true
}

/// Reports `not` and `sensitive` for a pin: a pin has no negation, and must be recorded for later comparison.
fn refuse_unpinnable(checker: &mut Checker<'_>, terms: &Terms, fields: &Fields<'_>) {
    if let Some(place) = fields.get("not").filter(|_| terms.not) {
        let help = "write the excluded value";
        checker.wrong(place, "`not` conflicts with a pinned value: the claim could never pass", help);
    }
    if let Some(place) = fields.get("sensitive").filter(|_| terms.sensitive) {
        let help = "remove `sensitive`: only a digest is recorded";
        checker.wrong(place, "`sensitive` conflicts with a pinned value, which must be recorded", help);
    }
}

/// Reports a claim that does not begin with a kind.
fn no_kind(checker: &mut Checker<'_>, key: &Node, entries: &[(Node, Node)]) {
    let name = key.key_text();
    let keys = || kinds().map(|kind| kind.key);
    if let Some((kind, _)) = entries.iter().find(|(key, _)| kind_of(key.key_text()).is_some()) {
        let help = format!("write `{}` first", kind.key_text());
        checker.wrong(key, "the first key of a claim is its kind", &help);
        return;
    }
    let hint = nearest(name, keys());
    let mut problem = checker.source.problem(&key.span, format!("there is no `{name}` evidence"));
    if hint.is_none() {
        problem = problem.help(format!("the first key of a claim is one of {}", listed(keys())));
    }
    checker.problems.push(problem.hint(hint));
}

fn terms(checker: &mut Checker<'_>, fields: &Fields<'_>) -> Option<Terms> {
    let truth = |checker: &mut Checker<'_>, key: &str| {
        fields.get(key).and_then(|node| checker.truth(node, key)).unwrap_or_default()
    };
    let time_ms = |checker: &mut Checker<'_>, key: &str| {
        let time = fields.get(key).and_then(|node| checker.duration(node, key))?;
        Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    };
    let severity = fields.get("severity").and_then(|node| checker.word(node, "severity", &["fail", "warn"]));
    let mut terms = Terms {
        not: truth(checker, "not"),
        timeout_ms: time_ms(checker, "timeout"),
        within_ms: time_ms(checker, "within"),
        at: fields.get("at").map(|node| occasions(checker, node)).unwrap_or_default(),
        severity: if severity == Some("warn") { Severity::Warn } else { Severity::Fail },
        sensitive: truth(checker, "sensitive"),
        fast: false,
        metadata: fields.get("metadata").and_then(|node| metadata(checker, node)).unwrap_or_default(),
    };
    if terms.sensitive {
        // The expectation is not recorded, so a check needs the file and happens at commit only.
        if let Some(place) = fields.get("at").filter(|_| terms.at.iter().any(|at| *at != Occasion::Commit)) {
            let help = "write `at: commit`, or remove `at`";
            checker.wrong(
                place,
                "`sensitive` claims are not recorded, and can only be checked at commit",
                help,
            );
        }
        terms.at = BTreeSet::from([Occasion::Commit]);
    }
    Some(terms)
}

fn occasions(checker: &mut Checker<'_>, node: &Node) -> BTreeSet<Occasion> {
    let items: Vec<&Node> = match &node.kind {
        Kind::List(items) => items.iter().collect(),
        _ => vec![node],
    };
    if items.is_empty() {
        checker.wrong(node, "`at` is empty", "write `commit`, `resume` or `verify`, or remove the key");
    }
    let occasion = |item: &&Node| match checker.word(item, "at", &["commit", "resume", "verify"])? {
        "commit" => Some(Occasion::Commit),
        "resume" => Some(Occasion::Resume),
        _ => Some(Occasion::Verify),
    };
    items.iter().filter_map(occasion).collect()
}

fn metadata(checker: &mut Checker<'_>, node: &Node) -> Option<BTreeMap<String, Value>> {
    let value = node.to_json();
    if holds_expression(&value) {
        checker.wrong(node, "`metadata` does not support expressions", "write plain values");
        return None;
    }
    match value {
        Value::Object(map) => Some(map.into_iter().collect()),
        _ => {
            checker.mismatch(node, "metadata", "a map", "write `metadata: { ticket: OPS-7 }`");
            None
        }
    }
}
