//! Evidence of a step: filled in from the step's scope, and checked before the step counts as completed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use waypost::engine::{
    Attempt, Engine, Exited, Follow, KnownOutputs, Performed, Program as _, Recovered, Settlement, StepRef,
};
use waypost::evidence::{COMMAND_EXIT, literal_path};
use waypost::record::{Claim, Ending, Failure, FailureKind, Occasion, Pack, Phase, Verdict};
use waypost_evidence::{
    API_RESPONSE, COMMAND, EXEC, Environment, NETWORK_REACHABLE, PROCESS_EXISTS, is_private_url,
    literal_text, sign_of, verifier,
};

use crate::expr::{ExprError, Scope, Template};
use crate::file::{About, ClaimTemplate, Evidence, Expected, Language, Step, Work, variables_in};
use crate::mask::Mask;

use super::command::Command;
use super::outputs::OutputFiles;
use super::service::Service;
use super::state::{StepOutput, StepState, WorkflowState};
use super::{WorkflowProgram, expression};

/// Expectation keys with paths as values.
const PATHS: [&str; 2] = ["pid_file", "newer_than"];

/// Evidence of a step with the scope of its expressions.
#[derive(Debug, Clone)]
pub(super) struct Vouching {
    evidence: Arc<Evidence>,
    scope: Scope,
    /// Environment variables of the step.
    env: BTreeMap<String, String>,
    step: String,
    /// Folder of relative paths, from the base folder of the run.
    folder: PathBuf,
    folder_of_run: Option<PathBuf>,
    grace: Duration,
    /// Whether the step is idempotent; if not, the exit is recorded before the check.
    repeats: bool,
    /// The addresses in the evidence of the services that the step uses.
    service_addresses: BTreeSet<String>,
}

impl WorkflowProgram {
    /// Adds the probes and the allowed folders of this workflow to `engine`; for a store without a folder, as on a
    /// server, also the base folder.
    ///
    /// Programs in evidence run with the caller's environment. Secrets, and variables whose value contains a
    /// secret, are withheld unless a claim names the variable.
    #[must_use]
    pub fn equip(&self, engine: Engine) -> Engine {
        let environment = self.surroundings.environment.clone();
        let is_secret = |(name, value): &(OsString, OsString)| {
            self.workflow().secrets().iter().any(|secret| name == secret.as_str())
                || self.mask().contains(value.as_encoded_bytes())
        };
        let withheld: BTreeSet<OsString> =
            environment.iter().filter(|variable| is_secret(variable)).map(|(name, _)| name.clone()).collect();
        let mask = self.mask().clone();
        let environment = Environment::of(environment)
            .withholding(withheld)
            .masked_by(move |text| mask.mask_str(text).into_owned());
        let engine = match engine.store().home() {
            Some(_) => engine,
            None => engine.with_base(&self.surroundings.base),
        };
        let engine = engine.with_verifier(verifier(environment));
        self.workflow().allow_paths().iter().fold(engine, Engine::allowing)
    }

    /// Returns the evidence to check when the step has ended, if the step has evidence.
    pub(super) fn vouching(
        &self,
        step_ref: StepRef<'_>,
        state: &WorkflowState,
    ) -> Result<Option<Vouching>, ExprError> {
        let step = self.step(step_ref);
        let (around, base) = self.around(step_ref);
        self.vouching_of(step, state, base.strip_prefix(&around.base).unwrap_or(base))
    }

    /// Returns the evidence of `step`, with `folder` as the folder of relative paths.
    pub(super) fn vouching_of(
        &self,
        step: &Step,
        state: &WorkflowState,
        folder: &Path,
    ) -> Result<Option<Vouching>, ExprError> {
        let Some(evidence) = &step.evidence else { return Ok(None) };
        let scope = self.scope_of(step, state);
        let env = step.resolve_env(&scope)?;
        Ok(Some(Vouching {
            evidence: Arc::clone(evidence),
            scope: scope.for_step(&step.id, &env),
            env,
            step: step.id.clone(),
            folder: folder.to_owned(),
            folder_of_run: self.folder(),
            grace: step.grace,
            repeats: step.idempotent,
            service_addresses: BTreeSet::new(),
        }))
    }

    /// Returns the subjects of the evidence that are known before the step has ended.
    pub(super) fn subjects_of(&self, step_ref: StepRef<'_>, state: &WorkflowState) -> Vec<String> {
        let Ok(Some(vouching)) = self.vouching(step_ref, state) else { return Vec::new() };
        let claims = vouching.evidence.claims.iter();
        claims.filter_map(|claim| vouching.subject(claim, &vouching.scope).ok()).collect()
    }

    /// Returns the claims and outputs to resolve a step in doubt, without a recorded end.
    ///
    /// The outputs must come from files that can be read again, or from the record if the step has `exited`.
    /// Returns `None` if outputs would be lost or the claims are not enough.
    pub(super) fn recover_of(
        &self,
        step_ref: StepRef<'_>,
        state: &WorkflowState,
        exited: Option<&Exited>,
    ) -> Option<Recovered<StepOutput>> {
        let step = self.step(step_ref);
        let Work::Run(text) = &step.work else { return None };
        if step.capture.is_some() || step.keeps_stdout || !step.hooks.is_empty() {
            return None;
        }
        let vouching = self.vouching(step_ref, state).ok()??;
        let outputs = match exited.and_then(|exited| exited.outputs.clone()) {
            Some(outputs) => StepOutput { outputs, ..StepOutput::default() },
            None if text.as_str().contains("WAYPOST_OUTPUT") => return None,
            None if self.workflow().reads_undeclared(step) => return None,
            None => {
                let scope = self.scope_of(step, state);
                let command = Command::render(step, text, &scope, self.around(step_ref)).ok()?;
                OutputFiles::of_files(command.outputs, self.mask().clone()).outputs(Map::new(), None).ok()?
            }
        };
        let exit_code = exited.map(|exited| exited.exit_code);
        let recorded = outputs.outputs.clone().into_iter().collect();
        let ending = Ending { exit_code, outputs: recorded, ..Ending::default() };
        let mut pack = vouching.pack(&outputs, &ending, self.mask()).ok()?;
        // Claims that are pinned at the end of the step have no pin. The other claims count if they are
        // enough.
        let count = pack.claims.len();
        pack.claims.retain(|claim| !claim.pinned && claim.is_due(Occasion::Resume));
        if pack.at_least.is_none() && pack.claims.len() < count || pack.check().is_err() {
            return None;
        }
        for claim in &mut pack.claims {
            // Checked now, whatever occasions the claim names.
            claim.terms.at.clear();
        }
        Some(Recovered { pack, output: outputs, ending })
    }

    /// Settles a step as done on a person's word. The outputs come from the state, from the caller, or are
    /// empty.
    pub(super) fn taken_as_done(
        &self,
        step_ref: StepRef<'_>,
        state: &mut WorkflowState,
        known: KnownOutputs<'_>,
    ) -> Result<(Follow, Phase), String> {
        let step = self.step(step_ref);
        // A rollback returns to a state before the result.
        if known == KnownOutputs::InState && state.step(step.id.as_str()).is_some() {
            return Ok((Follow::Needs, state.phase_of(&step.id, step.work.command().is_some())));
        }
        if let KnownOutputs::Given(outputs) = known {
            let ending = Ending {
                outputs: outputs.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
                ..Ending::default()
            };
            let output = StepOutput { outputs: outputs.clone(), ..StepOutput::default() };
            let follow = self.apply(state, step_ref, Settlement::Completed(output, &ending));
            return Ok((follow.map_err(|failure| failure.error.join(": "))?, Phase::Completed(ending)));
        }
        let readers = self.readers(step_ref.scope, step_ref.step.id.as_str());
        let readers: Vec<String> = readers.iter().map(|reader| format!("`{}`", reader.id)).collect();
        if !readers.is_empty() {
            return Err(format!("outputs that {} reads are missing", readers.join(", ")));
        }
        let ending = Ending::default();
        let follow = self.apply(state, step_ref, Settlement::Completed(StepOutput::default(), &ending));
        Ok((follow.map_err(|failure| failure.error.join(": "))?, Phase::Completed(ending)))
    }

    /// Returns whether a resume checks the evidence of this step. The evidence of a service is checked at
    /// each start instead.
    pub(super) fn is_checked_later(step: &Step) -> bool {
        step.evidence.is_some() && !matches!(step.work, Work::Service(_))
    }
}

/// Returns the address of a claim about a port or an HTTP server, with one name for this machine.
fn address_of(recorded: &str, subject: &str) -> Option<String> {
    let authority = match recorded {
        API_RESPONSE => subject.split_once("://")?.1.split(['/', '?', '#']).next()?,
        NETWORK_REACHABLE => subject,
        _ => return None,
    };
    let authority = authority.rsplit('@').next()?;
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (host, port),
        _ if recorded == NETWORK_REACHABLE => ("", authority),
        _ => (authority, if subject.starts_with("https") { "443" } else { "80" }),
    };
    let host = if matches!(host, "" | "localhost" | "127.0.0.1" | "[::1]") { "localhost" } else { host };
    Some(format!("{host}:{port}"))
}

impl Vouching {
    /// Lets claims about the addresses of services count at the commit only: at a resume the service does not run yet.
    pub(super) fn beside(self, services: &[Service]) -> Self {
        let addresses = services.iter().filter_map(Service::vouching).flat_map(Self::addresses);
        Self { service_addresses: addresses.collect(), ..self }
    }

    fn addresses(&self) -> Vec<String> {
        let address =
            |claim: &ClaimTemplate| address_of(claim.kind.recorded, &self.subject(claim, &self.scope).ok()?);
        self.evidence.claims.iter().filter_map(address).collect()
    }

    fn subject(&self, claim: &ClaimTemplate, scope: &Scope) -> Result<String, ExprError> {
        let Some(subject) = &claim.subject else { return Ok(self.step.clone()) };
        if claim.kind.about == About::Program {
            return subject.render_word(scope);
        }
        if claim.kind.about == About::Path {
            return Ok(self.placed(&subject.render_literal(scope, literal_path)?));
        }
        Ok(claim.kind.about.recorded(&subject.render(scope)?))
    }

    /// Resolves a path against the step's folder, relative to the base folder of the run.
    fn placed(&self, path: &str) -> String {
        if self.folder.as_os_str().is_empty() {
            return path.to_owned();
        }
        let folder = self.folder.to_string_lossy();
        Path::new(&*literal_path(&folder)).join(path).to_string_lossy().into_owned()
    }

    /// Returns the claims of a step with these outputs and this ending.
    ///
    /// # Errors
    /// A claim contains a secret that must not be recorded, or cannot be checked.
    fn pack(&self, output: &StepOutput, ending: &Ending, mask: &Mask) -> Result<Pack, Failure> {
        // An expression error fails the step, also after a success: without the claim there is nothing to
        // check.
        let wrong = |error| Failure { kind: FailureKind::Evidence, ..expression(error) };
        let scope = self.scope_after(output, ending);
        let pack = self.filled(&scope).map_err(wrong)?;
        for (template, claim) in self.evidence.claims.iter().zip(&pack.claims) {
            if let Some(why) = refused(template, claim, (mask, &scope)) {
                let key = template.kind.key;
                let error = format!("cannot check `{key}` evidence of step `{}`: {why}", self.step);
                return Err(Failure::new(FailureKind::Evidence, vec![error]));
            }
        }
        Ok(pack)
    }

    /// Returns the scope of expressions after the end of the step.
    fn scope_after(&self, output: &StepOutput, ending: &Ending) -> Scope {
        let mut scope = self.scope.clone();
        let own = StepState::completed(output.clone(), ending.exit_code);
        scope.insert_step(&self.step, &own.view(self.folder_of_run.as_deref()));
        scope
    }

    fn filled(&self, scope: &Scope) -> Result<Pack, ExprError> {
        let claim = |template: &ClaimTemplate| {
            let mut claim = Claim::new(template.kind.recorded, self.subject(template, scope)?);
            claim.name.clone_from(&template.name);
            let mut terms = template.terms.clone();
            let address = address_of(template.kind.recorded, &claim.subject);
            if terms.at.is_empty() && address.is_some_and(|address| self.service_addresses.contains(&address))
            {
                terms.at.insert(Occasion::Commit);
            }
            let claim = claim.on_terms(terms);
            let Some(expect) = &template.expect else { return Ok(claim.pinning()) };
            let mut expect = value_of(expect, template.kind.recorded, scope)?;
            if template.kind.about == About::Program {
                self.equip(template, &claim.subject, &mut expect);
            }
            self.place(&mut expect);
            let is_number =
                !claim.subject.is_empty() && claim.subject.bytes().all(|byte| byte.is_ascii_digit());
            let is_pin = template.kind.recorded == PROCESS_EXISTS && is_number && expect.is_null();
            // Process ids are reused, so the pin is the process that has the id now.
            Ok(if is_pin && !claim.terms.not { claim.pinning() } else { claim.expecting(expect) })
        };
        let claims = self.evidence.claims.iter().map(claim).collect::<Result<_, ExprError>>()?;
        Ok(Pack { at_least: self.evidence.at_least, claims })
    }

    /// Resolves the paths in an expectation like the paths of subjects.
    fn place(&self, expect: &mut Value) {
        for key in PATHS {
            let paths = match expect.get_mut(key) {
                Some(Value::Array(paths)) => paths.iter_mut().collect(),
                one => Vec::from_iter(one),
            };
            for path in paths {
                if let Value::String(path) = path
                    && path.parse::<jiff::Timestamp>().is_err()
                {
                    *path = self.placed(path);
                }
            }
        }
    }

    /// Adds to the expectation of a program: the folder, and the variables of the step that the program
    /// reads. Values of other named variables come from the environment of the check.
    fn equip(&self, template: &ClaimTemplate, code: &str, expect: &mut Value) {
        let mut map = match std::mem::take(expect) {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        if template.kind.recorded == COMMAND {
            map.entry("exit").or_insert_with(|| 0.into());
        }
        let read = variables_in(code).filter(|_| template.kind.recorded == COMMAND);
        let own = |name: &str| Some((name.to_owned(), Value::from(self.env.get(name)?.as_str())));
        let named = template.variables();
        let named = named.iter().map(|name| own(name).unwrap_or_else(|| (name.clone(), Value::Null)));
        let env: Map<String, Value> = read.filter_map(own).chain(named).collect();
        map.shift_remove("env");
        if !env.is_empty() {
            map.insert("env".to_owned(), env.into());
        }
        if !self.folder.as_os_str().is_empty() {
            map.insert("dir".to_owned(), self.folder.to_string_lossy().into_owned().into());
        }
        *expect = map.into();
    }

    /// Checks the evidence of a completed step, and fails the step if a claim does not hold.
    ///
    /// The claims limit the duration; the timeout of the step does not apply. After a stop request the claims
    /// are checked once, without waiting and within the grace period. If a claim then fails, the step counts
    /// as cut.
    pub(super) async fn vouched(
        &self,
        performed: Performed<StepOutput>,
        attempt: &Attempt,
        mask: &Mask,
    ) -> Performed<StepOutput> {
        let Performed::Completed { output, ending, mut report } = performed else { return performed };
        let pack = match self.pack(&output, &ending, mask) {
            Ok(pack) => pack,
            Err(failure) => return Performed::Failed { failure: Failure { ending, ..failure }, report },
        };
        if let (false, Some(code)) = (self.repeats, ending.exit_code) {
            attempt.exited(code, &output.outputs).await;
        }
        let checked = tokio::select! {
            biased;
            checked = attempt.check_evidence(&pack, ending.exit_code) => Some(checked),
            checked = self.checked_at_stop(attempt, &pack, ending.exit_code) => checked,
        };
        let Some(checked) = checked else { return Performed::Stopped { in_progress: true } };
        let checked = without_secrets(checked, mask);
        let failure = self.failure_of(&checked);
        report.evidence = Some(checked);
        match failure {
            None => Performed::Completed { output, ending, report },
            Some(failure) => Performed::Failed { failure: Failure { ending, ..failure }, report },
        }
    }

    /// Waits for a stop request, then checks the claims once. Returns `None` unless the evidence holds.
    async fn checked_at_stop(&self, attempt: &Attempt, pack: &Pack, exit_code: Option<i32>) -> Option<Pack> {
        attempt.stop_asked().await;
        let mut at_once = pack.clone();
        at_once.claims.iter_mut().for_each(|claim| claim.terms.within_ms = None);
        let mut checked = tokio::select! {
            biased;
            checked = attempt.check_evidence(&at_once, exit_code) => checked,
            () = attempt.killed() => return None,
            () = tokio::time::sleep(self.grace) => return None,
        };
        for (checked, claim) in checked.claims.iter_mut().zip(&pack.claims) {
            checked.terms.within_ms = claim.terms.within_ms;
        }
        Some(checked).filter(|checked| self.failure_of(checked).is_none())
    }

    /// Returns the failure of a step whose evidence does not hold.
    fn failure_of(&self, checked: &Pack) -> Option<Failure> {
        // All claims may be for another occasion.
        if matches!(checked.verdict_at(Occasion::Commit), Verdict::Ok | Verdict::Skipped) {
            return None;
        }
        let mut error = vec![format!("evidence of step `{}` failed", self.step)];
        error.extend(checked.unmet());
        Some(Failure::new(FailureKind::Evidence, error))
    }
}

/// Returns why a filled-in claim is rejected, if it is. The text does not quote the claim.
fn refused(template: &ClaimTemplate, claim: &Claim, (mask, scope): (&Mask, &Scope)) -> Option<String> {
    let about = template.kind.about;
    // In a literal of the claim's language a secret can be spelled differently, so the plain text is checked
    // too.
    let tells = |text: &Template| text.render(scope).is_ok_and(|text| mask.contains(text.as_bytes()));
    let is_told = template.subject.as_ref().is_some_and(tells);
    if about != About::Step && (is_told || mask.contains(claim.subject.as_bytes())) {
        return Some("the subject contains a secret, which must not be recorded".to_owned());
    }
    let is_told = || template.expect.iter().flat_map(Expected::templates).any(tells);
    if !claim.terms.sensitive && (mask.is_within(&claim.expect) || is_told()) {
        let why = "the expectation contains a secret, which must not be recorded: add `sensitive: true`";
        return Some(why.to_owned());
    }
    if let Some((why, help)) = about.wrong(&claim.subject) {
        return Some(format!("{why}; {help}"));
    }
    let may_be_private = claim.expect.get("private") == Some(&Value::Bool(true));
    let subject = template.subject.as_ref().filter(|_| about == About::Url && !may_be_private)?;
    let comes_from_elsewhere = !names_host(subject.before_expressions()) && !subject.is_plain();
    (comes_from_elsewhere && is_private_url(&claim.subject)).then(|| {
        "an expression selects a private address: to allow private addresses, add `private: true`".to_owned()
    })
}

/// Returns whether `beginning` has the complete host of a URL: a port, a path or a query follows.
fn names_host(beginning: &str) -> bool {
    let authority = beginning.split_once("://").map_or("", |(_, authority)| authority);
    let after =
        authority.strip_prefix('[').map_or(authority, |v6| v6.split_once(']').map_or("", |(_, rest)| rest));
    after.contains([':', '/', '?'])
}

/// Evaluates an expectation.
fn value_of(expected: &Expected, kind: &str, scope: &Scope) -> Result<Value, ExprError> {
    Ok(match expected {
        Expected::Plain(value) => value.clone(),
        // `exec` gets the value as JSON, not as text: the type of the value is kept.
        Expected::Filled(template, _) if kind == EXEC => template.evaluate(scope)?,
        Expected::Filled(template, language) => {
            let text = filled(template, *language, scope)?;
            match text.trim().parse::<i64>() {
                Ok(code) if kind == COMMAND_EXIT => code.into(),
                _ => text.into(),
            }
        }
        Expected::List(items) => {
            items.iter().map(|item| value_of(item, kind, scope)).collect::<Result<Vec<_>, _>>()?.into()
        }
        Expected::Map(entries) => {
            let entry =
                |(name, value): &(String, Expected)| Ok((name.clone(), value_of(value, kind, scope)?));
            Value::Object(entries.iter().map(entry).collect::<Result<_, ExprError>>()?)
        }
    })
}

/// Renders a text, so that expressions cannot add operators or wildcards of `language`.
fn filled(template: &Template, language: Language, scope: &Scope) -> Result<String, ExprError> {
    let as_pattern = || template.render_literal(scope, |text| regex_lite::escape(text).into());
    let is_compared = matches!(language, Language::Comparison | Language::Size);
    let sign = sign_of(template.before_expressions().trim_start()).filter(|_| is_compared);
    match (language, sign) {
        (Language::Path, _) => template.render_literal(scope, literal_path),
        (Language::Pattern, _) | (_, Some("~")) => as_pattern(),
        (Language::Text, _) | (_, Some(_)) => template.render(scope),
        (Language::Comparison, None) => Ok(literal_text(&template.render(scope)?).into_owned()),
        (Language::Size, None) => Ok(literal_text(template.render(scope)?.trim()).into_owned()),
    }
}

/// Replacement for a number that is a secret.
const HIDDEN: &str = "***";

/// Masks secrets in the observed values of all claims.
fn without_secrets(mut pack: Pack, mask: &Mask) -> Pack {
    pack.claims.iter_mut().for_each(|claim| redact(claim, mask));
    pack
}

/// Masks secrets in the observed value and the error of a claim.
pub(super) fn redact(claim: &mut Claim, mask: &Mask) {
    hide(&mut claim.found, mask);
    claim.error = claim.error.take().map(|error| mask.mask_str(&error).into_owned());
}

fn hide(value: &mut Value, mask: &Mask) {
    match value {
        Value::String(text) => *text = mask.mask_str(text).into_owned(),
        Value::Array(items) => items.iter_mut().for_each(|item| hide(item, mask)),
        Value::Object(map) => {
            let entries = std::mem::take(map).into_iter();
            *map = entries
                .map(|(name, mut value)| {
                    hide(&mut value, mask);
                    (mask.mask_str(&name).into_owned(), value)
                })
                .collect();
        }
        // A number cannot be masked in part.
        Value::Number(_) if mask.is_within(value) => *value = HIDDEN.into(),
        Value::Number(_) => {}
        Value::Null | Value::Bool(_) => {}
    }
}
