//! `waypost config`: every configured value, and its source.

use serde_json::{Value, json};

use super::Context;
use crate::cli::Color;
use crate::config::{Config, Sourced};
use crate::error::Error;
use crate::exit::Exit;
use crate::format::time;
use crate::run::environment;
use crate::store_location;
use crate::view::Origin;
use crate::view::{ConfigFileView, ConfigView, SettingView, VERSION};

/// Default wait of `run` and `resume`, as in their options.
const WAIT: &str = "5m";

#[expect(clippy::unused_async, reason = "every command is asked in the same way")]
pub(crate) async fn config(context: &Context) -> Result<Exit, Error> {
    let config = &context.config;
    let mut settings = vec![store(context)?, color(context), wait(config), max_parallel(config)];
    for (name, command) in config.agents() {
        settings.push(of(&format!("agents.{name}"), Value::String(command.value.clone()), &command));
    }
    let workflow = config.workflow_file().map(|path| ConfigFileView {
        source: Origin::Workflow,
        path: path.display().to_string(),
        exists: true,
    });
    let files = config.places().into_iter().filter_map(|(origin, place)| {
        let path = place.path.as_ref()?.display().to_string();
        Some(ConfigFileView { source: origin, path, exists: place.file.is_some() })
    });
    let view = ConfigView { v: VERSION, settings, files: workflow.into_iter().chain(files).collect() };
    if context.output.json {
        context.output.document(&view)?;
    } else {
        context.output.answer(&told(context, &view))?;
    }
    Ok(Exit::Done)
}

fn told(context: &Context, view: &ConfigView) -> String {
    let source = |setting: &SettingView| match (setting.source, &setting.path, setting.line) {
        (_, Some(path), Some(line)) => format!("{path}:{line}"),
        (Origin::Flag, ..) => format!("--{}", setting.key),
        (Origin::Environment, ..) => "WAYPOST_STORE".to_owned(),
        _ => "default".to_owned(),
    };
    let value = |value: &Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    let row = |setting: &SettingView| vec![setting.key.clone(), value(&setting.value), source(setting)];
    let rows: Vec<_> = view.settings.iter().map(row).collect();
    let mut text = context.output.table(&["KEY", "VALUE", "SOURCE"], &rows);
    text.push_str("\n\nFiles, highest precedence first:\n");
    for file in &view.files {
        let exists = if file.exists { "" } else { " (not there)" };
        text.push_str(&format!("  {}{exists}\n", crate::output::shown(&file.path)));
    }
    if !view.files.iter().any(|file| file.source == Origin::Project) {
        text.push_str("  project: no `.waypost/config.yaml` in this folder or above\n");
    }
    if !view.files.iter().any(|file| file.source == Origin::User) {
        text.push_str("  user: neither XDG_CONFIG_HOME nor HOME is set\n");
    }
    text
}

fn store(context: &Context) -> Result<SettingView, Error> {
    let found = context.config.store()?;
    let (given, origin) = context.store_given();
    Ok(match (given, found) {
        (Some(url), _) if matches!(origin, Origin::Flag | Origin::Environment) => {
            plain("store", Value::String(store_location::shown(url)), origin)
        }
        (_, Some(found)) => of("store", Value::String(store_location::shown(&found.value)), &found),
        (_, None) => plain("store", Value::String(store_location::default_url(None)?), Origin::Default),
    })
}

fn color(context: &Context) -> SettingView {
    let name = |color: Color| match color {
        Color::Auto => "auto",
        Color::Always => "always",
        Color::Never => "never",
    };
    match (context.color_flag, context.config.color()) {
        (Some(color), _) => plain("color", json!(name(color)), Origin::Flag),
        (None, Some(found)) => of("color", json!(name(found.value)), &found),
        (None, None) => plain("color", json!(name(Color::Auto)), Origin::Default),
    }
}

fn wait(config: &Config) -> SettingView {
    match config.wait() {
        Some(found) => of("wait", json!(time::written(found.value)), &found),
        None => plain("wait", json!(WAIT), Origin::Default),
    }
}

fn max_parallel(config: &Config) -> SettingView {
    match config.max_parallel() {
        Some(found) => of("max_parallel", json!(found.value.get()), &found),
        None => plain("max_parallel", json!(environment::processors().get()), Origin::Default),
    }
}

fn of<T>(key: &str, value: Value, found: &Sourced<T>) -> SettingView {
    let path = Some(found.path.display().to_string());
    SettingView { key: key.to_owned(), value, source: found.origin, path, line: Some(found.line) }
}

fn plain(key: &str, value: Value, source: Origin) -> SettingView {
    SettingView { key: key.to_owned(), value, source, path: None, line: None }
}
