//! `evidence`: by what a step is believed.
//!
//! In each claim the first key names the kind and what it is about; the others say what is expected. What can be known
//! to be wrong before anything runs is wrong here: a claim that nothing could satisfy, and a list that asks for nothing.

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

/// Makes the keys of a kind: its own, and those of every claim.
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

/// A kind of evidence.
#[derive(Debug)]
pub struct KindOfEvidence {
    /// The key that names it in the file.
    pub key: &'static str,
    /// How it is recorded.
    pub recorded: &'static str,
    /// What its claims are about.
    pub about: About,
    pub(super) set: &'static KeySet,
    /// What can be expected of it.
    pub(super) expectations: &'static [(&'static str, Wanted)],
}

/// The kinds.
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

/// By what a step is believed: claims, and how many of them must hold.
#[derive(Debug, Clone)]
pub struct Evidence {
    /// How many must hold; none means all.
    pub at_least: Option<u32>,
    /// The claims; at least one.
    pub claims: Vec<ClaimTemplate>,
}

/// A claim as the file makes it.
#[derive(Debug, Clone)]
pub struct ClaimTemplate {
    /// Its kind.
    pub kind: &'static KindOfEvidence,
    /// What it is about; `None` for the step itself.
    pub subject: Option<Template>,
    /// What must be found; `None` if that is taken from the world when the step ends.
    pub expect: Option<Expected>,
    /// A name given by the user.
    pub name: Option<String>,
    /// How and when it is checked, and what it counts for.
    pub terms: Terms,
}

/// A value in which expressions may stand.
#[derive(Debug, Clone)]
pub enum Expected {
    /// As it stands.
    Plain(Value),
    /// What the expressions in it come to, which is data: no sign of the language that the text is written in.
    Filled(Template, Language),
    /// All of these.
    List(Vec<Self>),
    /// All of these, by name.
    Map(Vec<(String, Self)>),
}

/// The language that an expectation is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// None: it is taken as it stands.
    Text,
    /// A value, a comparison or a regular expression.
    Comparison,
    /// A size, or a comparison with one.
    Size,
    /// A regular expression.
    Pattern,
    /// A path.
    Path,
}

impl Expected {
    /// Returns the texts in it that hold expressions.
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
    /// Returns the variables that its program is given by name.
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

/// Returns the names of the variables that code for a shell reads, as `$NAME` and `${NAME`.
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
    /// Returns the exit codes with which its step has ended well, beside 0: those that a claim names as numbers.
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

    /// Returns the texts in it that may hold expressions.
    pub(super) fn templates(&self) -> impl Iterator<Item = &Template> {
        self.claims
            .iter()
            .flat_map(|claim| claim.subject.iter().chain(claim.expect.iter().flat_map(Expected::templates)))
    }
}

/// Evidence as it stands in the file, with the places of its texts.
#[derive(Debug)]
pub(super) struct EvidenceDraft<'n> {
    pub(super) evidence: Evidence,
    pub(super) texts: Vec<(Template, &'n Node)>,
    /// What a shell reads as code, and the variables that it is given by name.
    pub(super) commands: Vec<CommandDraft<'n>>,
}

/// The command of a claim, with its place, and the variables that it is given by name.
pub(super) type CommandDraft<'n> = (Template, &'n Node, Vec<String>);

/// `evidence`.
pub(super) fn evidence<'n>(checker: &mut Checker<'_>, node: &'n Node) -> Option<EvidenceDraft<'n>> {
    let (claims_node, at_least) = match &node.kind {
        Kind::List(_) => (node, None),
        Kind::Map(entries) => {
            if let Some((key, _)) = entries.iter().find(|(key, _)| kind_of(key.key_text()).is_some()) {
                let help = format!("begin it with `- `: `evidence: [ {{ {}: … }} ]`", key.key_text());
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
        checker.mismatch(claims_node, "of", "a list of claims", "begin every claim with `- `");
        return None;
    };
    if items.is_empty() || items.len() > CLAIMS_MAX {
        let message = match items.len() {
            0 => "`evidence` without a claim shows nothing".to_owned(),
            count => format!("`evidence` has {count} claims, at most {CLAIMS_MAX} are allowed"),
        };
        checker.wrong(claims_node, message, "write what shows that the step is done: `- file: out.txt`");
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
        let help = "remove `severity: warn` from one of them, or the evidence";
        checker.wrong(claims_node, "claims that only warn show nothing of the step", help);
        return None;
    }
    if let Some((at_least, place)) = at_least.filter(|(least, _)| *least as usize > counting) {
        let message = format!("`at_least: {at_least}` can never hold: {counting} claims count");
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

/// One claim does not count twice, whatever it is called.
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
            checker.wrong(item, "this claim stands twice, and would count twice", "remove one of them");
        }
        seen.push(says);
    }
}

/// Returns the code for a shell in a claim.
fn command<'n>(claim: &ClaimTemplate, node: &'n Node) -> Option<CommandDraft<'n>> {
    let subject = claim.subject.clone().filter(|_| claim.kind.recorded == COMMAND)?;
    let Kind::Map(entries) = &node.kind else { return None };
    Some((subject, &entries.first()?.1, claim.variables()))
}

/// How many of which claims must hold.
type Rule<'n> = (&'n Node, Option<(u32, &'n Node)>);

fn rule<'n>(checker: &mut Checker<'_>, node: &'n Node) -> Option<Rule<'n>> {
    let fields = Fields::of(checker, node, &EVIDENCE)?;
    let at_least = match (fields.get("at_least"), fields.get("any")) {
        (Some(_), Some(place)) => {
            checker.wrong(place, "`at_least` says already how many must hold", "remove `any`");
            return None;
        }
        (Some(place), None) => {
            let count = checker.integer(place, "at_least", 1..=CLAIMS_MAX as u64)?;
            Some((u32::try_from(count).unwrap_or(u32::MAX), place))
        }
        (None, Some(place)) => match checker.truth(place, "any")? {
            true => Some((1, place)),
            false => {
                checker.wrong(place, "`any: false` would ask for nothing", "remove it: all must hold then");
                return None;
            }
        },
        (None, None) => None,
    };
    match fields.get("of") {
        Some(of) => Some((of, at_least)),
        None if fields.has_any(&["of"]) => None,
        None => {
            checker.wrong(node, "`evidence` has no claims", "add `of:` and below it `- file: out.txt`");
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
        checker.wrong(node, "a claim says what it is about", help);
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

/// How many files there are is a question only where several can be meant.
fn refuse_count_of_one(checker: &mut Checker<'_>, subject: Option<&Template>, fields: &Fields<'_>) {
    let Some(subject) = subject.filter(|subject| !subject.written().any(is_pattern)) else { return };
    if let Some(place) = fields.get("count") {
        let message = format!("`{}` names one file, of which there is no `count`", subject.as_str());
        checker.wrong(place, message, "write a pattern, as `out/*.csv`, or remove `count`");
    }
}

/// Whether what was pinned is trusted by its times.
fn fast(checker: &mut Checker<'_>, fields: &Fields<'_>) -> bool {
    let Some(place) = fields.get("fast") else { return false };
    if let (Some(true), Some(_)) = (checker.truth(place, "fast"), fields.get("is")) {
        let help = "remove `is` or `fast`";
        checker.wrong(place, "`fast` trusts what was pinned, and with `is` nothing is", help);
    }
    true
}

/// What is pinned is what the step left: there is no opposite of it, and it cannot be kept to itself.
fn refuse_unpinnable(checker: &mut Checker<'_>, terms: &Terms, fields: &Fields<'_>) {
    if let Some(place) = fields.get("not").filter(|_| terms.not) {
        let help = "say what it must not be";
        checker.wrong(place, "what is taken as it is cannot be other than it is", help);
    }
    if let Some(place) = fields.get("sensitive").filter(|_| terms.sensitive) {
        let help = "remove `sensitive`: only a digest is kept";
        checker.wrong(place, "what is compared with later must be kept until then", help);
    }
}

/// Says that a claim does not begin with a kind.
fn no_kind(checker: &mut Checker<'_>, key: &Node, entries: &[(Node, Node)]) {
    let name = key.key_text();
    let keys = || kinds().map(|kind| kind.key);
    if let Some((kind, _)) = entries.iter().find(|(key, _)| kind_of(key.key_text()).is_some()) {
        let help = format!("write `{}` first", kind.key_text());
        checker.wrong(key, "the first key of a claim says of which kind it is", &help);
        return;
    }
    let hint = nearest(name, keys());
    let mut problem = checker.source.problem(&key.span, format!("there is no `{name}` evidence"));
    if hint.is_none() {
        problem = problem.help(format!("a claim begins with one of {}", listed(keys())));
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
        // What it expects is not kept, so that only who has the file at hand can check it.
        if let Some(place) = fields.get("at").filter(|_| terms.at.iter().any(|at| *at != Occasion::Commit)) {
            let help = "write `at: commit`, or remove `at`";
            checker.wrong(place, "what is `sensitive` is not kept, and cannot be checked again later", help);
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
        checker.wrong(node, "`at` names no occasion", "write `commit`, `resume` or `verify`, or remove it");
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
        checker.wrong(node, "`metadata` is kept as it stands, without expressions", "write plain values");
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
