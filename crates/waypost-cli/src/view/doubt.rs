//! Steps in doubt, and the commands that answer.

use waypost::plan::Decision;

use crate::format::text::quoted;

/// A step in doubt, as a person sees it.
#[derive(Debug, Clone)]
pub(crate) struct Doubt {
    /// The path of the step.
    pub(crate) step: String,
    pub(crate) cause: String,
    /// The outputs that `--treat-as done` may give.
    pub(crate) outputs: Vec<String>,
}

impl Doubt {
    /// Creates the question of a decision, without the names of the workflow file.
    pub(crate) fn plain(question: &Decision) -> Self {
        let (scope, id) = (&question.scope, &question.step);
        let step = if scope.is_main() { id.to_string() } else { format!("{}/{id}", scope.readable()) };
        Self { step, cause: question.cause.to_string(), outputs: Vec::new() }
    }

    /// Returns whether a step path names the step in doubt, or a step around it.
    pub(crate) fn is_within(&self, path: &str) -> bool {
        let rest = self.step.strip_prefix(path);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', ':', '~']))
    }
}

/// A command that answers questions.
pub(crate) struct Answer {
    pub(crate) command: String,
    /// The effect, as a predicate of the command.
    pub(crate) does: String,
    /// The effect, as an instruction.
    pub(crate) to: String,
}

/// Most steps named in one command: a longer one is hard to read.
const NAMED_MAX: usize = 4;

/// Returns the commands that answer: these questions only, or with many of them, later questions too. `command`: the
/// resume without a decision.
pub(crate) fn answers(command: &str, doubts: &[Doubt]) -> Vec<Answer> {
    let is_named =
        (1..=NAMED_MAX).contains(&doubts.len()) && doubts.iter().all(|doubt| !doubt.step.contains(','));
    let option = |word: &str, doubts: &[Doubt]| {
        let steps: Vec<&str> = doubts.iter().map(|doubt| doubt.step.as_str()).collect();
        let named = if is_named { format!("{word}={}", steps.join(",")) } else { word.to_owned() };
        format!(" --treat-as {}", quoted(&named))
    };
    let done = |doubts: &[Doubt]| {
        let given = |step: &str, name: &str| format!(" --output {}", quoted(&format!("{step}.{name}=VALUE")));
        let of =
            |doubt: &Doubt| -> String { doubt.outputs.iter().map(|name| given(&doubt.step, name)).collect() };
        option("done", doubts) + &doubts.iter().map(of).collect::<String>()
    };
    let all = match (doubts, is_named) {
        ([_], true) | ([], _) => "it",
        (_, true) => "all",
        _ => "all, also in later questions,",
    };
    let answer = |options: String, does: String, to: String| Answer {
        command: format!("{command}{options}"),
        does,
        to,
    };
    let mut answers = vec![
        answer(done(doubts), format!("keeps {all} as done"), format!("keep {all} as done")),
        answer(option("retry", doubts), format!("runs {all} again"), format!("run {all} again")),
    ];
    if let ([first, rest @ ..], true) = (doubts, is_named)
        && !rest.is_empty()
    {
        let others = format!("`{}` as done, and run", first.step);
        let options = done(std::slice::from_ref(first)) + &option("retry", rest);
        let (does, to) =
            (format!("keeps {others}s the others again"), format!("keep {others} the others again"));
        answers.insert(0, answer(options, does, to));
    }
    answers
}

/// Returns the commands that answer, with their effects, one a line.
pub(crate) fn answer_lines(command: &str, doubts: &[Doubt]) -> String {
    let answers = answers(command, doubts);
    let width = answers.iter().map(|answer| answer.command.chars().count()).max().unwrap_or_default();
    let line = |answer: &Answer| format!("\n  {:width$}  # {}", answer.command, answer.to);
    answers.iter().map(line).collect()
}

/// Returns the questions, and the commands that answer.
pub(crate) fn questions(command: &str, doubts: &[Doubt]) -> String {
    let question = |doubt: &Doubt| format!("Step {} needs a decision: {}\n", doubt.step, doubt.cause);
    let questions: String = doubts.iter().map(question).collect();
    format!("{questions}Decide with:{}", answer_lines(command, doubts))
}
