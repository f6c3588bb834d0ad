//! `waypost report`: the results of a run, as Markdown or an HTML page. Derived from records; writes only the
//! requested file.

use std::fs;

use waypost::engine::Snapshot;
use waypost::record::RunStatus;
use waypost::report::head;

use super::{Context, graph, show};
use crate::cli::{DeadLetter, ReportArgs};
use crate::error::Error;
use crate::exit::Exit;
use crate::output::shown;
use crate::run::dead_letters;
use crate::run::definition::{names_of, workflow_in_force};
use crate::run::doubt::doubts_of;
use crate::run::run_status;
use crate::store_location;
use crate::view::doubt::{Answer, Doubt, answers};
use crate::view::step_names::StepNames;
use crate::view::{ReportView, VERSION};

pub(super) mod history;
mod page;
mod timeline;

use self::history::{RunHistory, read};
use self::page::{LETTERS_MAX, resume_of};

pub(crate) async fn report(context: &Context, args: ReportArgs) -> Result<Exit, Error> {
    let (store, run) = context.find(args.run.as_deref()).await?;
    args.out.as_deref().map(store_location::refuse_no_folder).transpose()?;
    let mut snapshot = Snapshot::read(store.as_ref(), &run).await?;
    run_status::correct_snapshot(store.as_ref(), &mut snapshot);
    let names = names_of(&snapshot);
    let mut history = read(store.as_ref(), &run, &names).await?;
    for reference in &history.damaged {
        let text =
            format!("checkpoint {reference} is damaged and omitted; `waypost verify {run}` shows details");
        context.output.warn(&context.with_store(&text));
    }
    let doubts = match snapshot.status() {
        RunStatus::InDoubt => doubts_of(store.as_ref(), &snapshot, context.now()).await?,
        _ => Vec::new(),
    };
    history.mark(&doubts, &names);
    let workflow = workflow_in_force(&snapshot);
    let letters = dead_letters::letters(store.as_ref(), &run, workflow.as_ref()).await?;
    let (format, text) = if args.html {
        let show = show::view_of(store.as_ref(), &run).await?;
        let nodes = workflow.map(|workflow| graph::nodes_of_run(&workflow, &show, &history));
        let page = page::Page {
            snapshot: &snapshot,
            show: &show,
            names: &names,
            history: &history,
            letters: &letters,
            doubts: &doubts,
            nodes: nodes.unwrap_or_default(),
            now: context.now(),
        };
        ("html", page.text())
    } else {
        ("markdown", markdown(&snapshot, &history, (&doubts, &letters), &names))
    };
    if let Some(file) = &args.out {
        fs::write(file, &text).map_err(|source| Error::Create { path: file.clone(), source })?;
    }
    let status = snapshot.status();
    if context.output.json {
        let file = args.out.as_ref().map(|file| file.display().to_string());
        let text = args.out.is_none().then_some(text);
        context.output.document(&ReportView {
            v: VERSION,
            run: run.to_string(),
            status,
            format,
            file,
            text,
        })?;
    } else if let Some(file) = &args.out {
        context.output.done(&format!("Wrote the report of run {run} to {}", file.display()))?;
    } else {
        context.output.answer(&text)?;
    }
    Ok(Exit::Done)
}

fn markdown(
    snapshot: &Snapshot,
    history: &RunHistory,
    (doubts, letters): (&[Doubt], &[DeadLetter]),
    names: &StepNames,
) -> String {
    let mut text = head(snapshot.entry.record.record(), snapshot.status());
    if !doubts.is_empty() {
        text.push_str("## Questions\n\n");
        for Doubt { step, cause, .. } in doubts {
            text.push_str(&format!("- Step `{step}` needs a decision: {cause}\n"));
        }
        text.push_str("\nCheck the effects, then decide:\n\n");
        for Answer { command, does, .. } in answers(&resume_of(snapshot), doubts) {
            text.push_str(&format!("- `{command}` {does}\n"));
        }
        text.push('\n');
    }
    if !letters.is_empty() {
        text.push_str(&format!("## Dead letters: {}\n\n", letters.len()));
        for letter in letters.iter().take(LETTERS_MAX) {
            let place = dead_letters::place(letter, names);
            let error = names.plain(letter.failure.error.first().map_or("failed", String::as_str));
            text.push_str(&format!("- `{place}`: `{}`\n", shown(&error).replace('`', "'")));
        }
        let run = &snapshot.entry.summary.run;
        text.push_str(&format!(
            "\n`waypost dead-letters list {run}` lists all, `waypost dead-letters retry {run}` retries them\n\n"
        ));
    }
    // Without the marker of the section.
    let sections = history.ends.iter().filter_map(|ended| ended.text.split_once('\n'));
    sections.for_each(|(_, section)| text.push_str(section));
    text
}
