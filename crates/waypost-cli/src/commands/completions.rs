//! `waypost completions` and `waypost man`: generated from the command line definition, without a store.

use std::fs;
use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::env::Shells;
use clap_mangen::Man;

use super::Context;
use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::completion::VARIABLE;
use crate::error::Error;
use crate::exit::Exit;
use crate::view::{ManFilesView, ManPageView, ScriptView, VERSION};

/// The name of the program and of its pages.
const PROGRAM: &str = "waypost";

/// Makes bash treat `RUN@SEQ` as one word, as other shells do.
const WHOLE_REFERENCES: &str = "COMP_WORDBREAKS=${COMP_WORDBREAKS//@/}\n";

#[expect(clippy::unused_async, reason = "every command is asked in the same way")]
pub(crate) async fn completions(context: &Context, args: CompletionsArgs) -> Result<Exit, Error> {
    let shell = args.shell.name();
    let shells = Shells::builtins();
    let completer = shells.completer(shell).ok_or_else(|| {
        Error::usage(format!("there is no completion for `{shell}`"), "supported shells: bash, zsh and fish")
    })?;
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, PROGRAM, PROGRAM, &this_program(), &mut script)?;
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if shell == "bash" {
        script.insert_str(0, WHOLE_REFERENCES);
    }
    if context.output.json {
        context.output.document(&ScriptView { v: VERSION, shell, script })?;
    } else {
        context.output.answer(&script)?;
    }
    Ok(Exit::Done)
}

/// Returns this program as the shell should call it: by name if found by name, else by absolute path.
fn this_program() -> String {
    let called = std::env::args_os().next().unwrap_or_else(|| PROGRAM.into());
    let path = Path::new(&called);
    let whole = if path.components().count() > 1 { std::path::absolute(path).ok() } else { None };
    whole.as_deref().unwrap_or(path).to_string_lossy().into_owned()
}

#[expect(clippy::unused_async, reason = "every command is asked in the same way")]
pub(crate) async fn man(context: &Context, args: ManArgs) -> Result<Exit, Error> {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    if let Some(folder) = &args.dir {
        return write_pages(context, &root, folder);
    }
    let meant = match &args.command {
        None => Some(root.clone()),
        Some(name) => shown(&root).find(|command| command.get_name() == name).cloned(),
    };
    let Some(meant) = meant else {
        let name = args.command.unwrap_or_default();
        return Err(Error::usage(
            format!("there is no command `{}`", crate::output::shown(&name)),
            "`waypost --help` lists the commands",
        ));
    };
    let page = page(&root, meant)?;
    if context.output.json {
        context
            .output
            .document(&ManPageView { v: VERSION, page: String::from_utf8_lossy(&page).into_owned() })?;
    } else {
        context.output.bytes(&page)?;
    }
    Ok(Exit::Done)
}

fn write_pages(context: &Context, root: &clap::Command, folder: &Path) -> Result<Exit, Error> {
    let cannot = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Create { path, source }
    };
    fs::create_dir_all(folder).map_err(cannot(folder))?;
    let mut files = Vec::new();
    for command in std::iter::once(root).chain(shown(root)) {
        let path = folder.join(format!("{}.1", page_name(root, command)));
        fs::write(&path, page(root, command.clone())?).map_err(cannot(&path))?;
        files.push(path.display().to_string());
    }
    if context.output.json {
        context.output.document(&ManFilesView { v: VERSION, files })?;
    } else {
        let count = files.len();
        context.output.done(&format!("Wrote {count} manual pages to {}", folder.display()))?;
    }
    Ok(Exit::Done)
}

/// Returns the visible commands.
fn shown(root: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    root.get_subcommands().filter(|command| !command.is_hide_set())
}

fn page_name(root: &clap::Command, command: &clap::Command) -> String {
    if command.get_name() == root.get_name() {
        PROGRAM.to_owned()
    } else {
        format!("{PROGRAM}-{}", command.get_name())
    }
}

/// Formats the subcommands of a command, which have no pages of their own.
fn subcommands(name: &str, command: &clap::Command) -> String {
    let plain = |text: &str| text.replace('\\', "\\e").replace('-', "\\-");
    let mut section = String::new();
    for inner in shown(command).filter(|inner| inner.get_name() != "help") {
        if section.is_empty() {
            section.push_str(".SH \"COMMANDS\"\n");
        }
        let about = inner.get_about().map(ToString::to_string).unwrap_or_default();
        let call = format!("{} {}", name.replacen('-', " ", 1), inner.get_name());
        section.push_str(&format!(".TP\n.B {}\n{}\n", plain(&call), plain(&about)));
    }
    section
}

/// Returns the command with only its positional arguments, or only its options.
fn only(command: &clap::Command, positional: bool) -> clap::Command {
    let hidden = |arg: clap::Arg| {
        let is_hidden = arg.is_hide_set() || arg.is_positional() != positional;
        arg.hide(is_hidden)
    };
    command.clone().mut_args(hidden)
}

/// Generates the page of a command. The table of exit codes keeps its layout.
fn page(root: &clap::Command, command: clap::Command) -> Result<Vec<u8>, Error> {
    let name = page_name(root, &command);
    let version = concat!("waypost ", env!("CARGO_PKG_VERSION"));
    let within = if name == PROGRAM { String::new() } else { subcommands(&name, &command) };
    let command = command.name(name.clone()).display_name(name.clone()).after_help("");
    let (arguments, options) = (only(&command, true), only(&command, false));
    let man = Man::new(command).title(name.to_uppercase()).section("1").source(version).manual("Waypost");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if arguments.get_positionals().next().is_some() {
        let mut section = Vec::new();
        Man::new(arguments).render_options_section(&mut section)?;
        let section = String::from_utf8_lossy(&section).replace(".SH OPTIONS", ".SH ARGUMENTS");
        page.extend_from_slice(section.as_bytes());
    }
    Man::new(options).render_options_section(&mut page)?;
    page.extend_from_slice(within.as_bytes());
    if name == PROGRAM {
        man.render_subcommands_section(&mut page)?;
        page.extend_from_slice(b".SH \"EXIT CODES\"\n");
        for exit in Exit::ALL {
            let (code, meaning) = exit.entry();
            let meaning = meaning.replace('\\', "\\e").replace('-', "\\-");
            page.extend_from_slice(format!(".TP\n.B {code}\n{meaning}\n").as_bytes());
        }
    }
    let others: Vec<String> = match name == PROGRAM {
        true => shown(root).map(|command| page_name(root, command)).collect(),
        false => vec![PROGRAM.to_owned()],
    };
    let others = others.iter().map(|other| format!("\\fB{}\\fR(1)", other.replace('-', "\\-")));
    let others = others.collect::<Vec<_>>().join(", ");
    page.extend_from_slice(format!(".SH \"SEE ALSO\"\n{others}\n").as_bytes());
    Ok(page)
}
