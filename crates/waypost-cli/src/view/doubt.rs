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
        let (branch, id) = (&question.branch, &question.step);
        let step = if branch.is_main() { id.to_string() } else { format!("{}/{id}", branch.readable()) };
        Self { step, cause: question.cause.to_string(), outputs: Vec::new() }
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

/// Returns the commands that answer. `command`: the resume without a decision.
pub(crate) fn answers(command: &str, doubts: &[Doubt]) -> Vec<Answer> {
    let outputs = |doubts: &[Doubt]| {
        let of = |doubt: &Doubt| {
            let given =
                |name: &String| format!(" --output {}", quoted(&format!("{}.{name}=VALUE", doubt.step)));
            doubt.outputs.iter().map(given).collect::<String>()
        };
        doubts.iter().map(of).collect::<String>()
    };
    let answer = |options: String, [does, to]: [String; 2]| Answer {
        command: format!("{command} --treat-as {options}"),
        does,
        to,
    };
    let text = |does: &str, to: &str| [does.to_owned(), to.to_owned()];
    let done = |effect| answer(format!("done{}", outputs(doubts)), effect);
    match doubts {
        [first, _, ..] => {
            let (step, given) = (&first.step, outputs(&doubts[..1]));
            let effect =
                |keep: &str, run: &str| format!("{keep} `{step}` as done, and {run} the others again");
            vec![
                answer(
                    format!("{}{given} --treat-as retry", quoted(&format!("done={step}"))),
                    [effect("keeps", "runs"), effect("keep", "run")],
                ),
                done(text("keeps all steps as done", "keep all as done")),
                answer("retry".to_owned(), text("runs all again", "run all again")),
            ]
        }
        _ => vec![
            done(text("keeps the step as done", "keep it as done")),
            answer("retry".to_owned(), text("runs it again", "run it again")),
        ],
    }
}

/// Returns the commands that answer, with their effects, one a line.
pub(crate) fn answer_lines(command: &str, doubts: &[Doubt]) -> String {
    let answers = answers(command, doubts);
    let width = answers.iter().map(|answer| answer.command.chars().count()).max().unwrap_or_default();
    let line = |answer: &Answer| format!("\n  {:width$}  # {}", answer.command, answer.to);
    answers.iter().map(line).collect()
}
