//! `waypost store init`, `upgrade`, `check` and `stats`: the store as a whole.

use std::path::PathBuf;

use waypost::store::{PAGE_ITEMS_MAX, RunQuery, StoreError};
use waypost_sqlite::{SCHEMA_VERSION, schema_of};

use super::Context;
use crate::cli::StoreCommand;
use crate::error::Error;
use crate::exit::Exit;
use crate::run::run_status::{self, Correction};
use crate::store_location::{self, Access, StoreUrl, postgres};
use crate::view::{StoreCheckedView, StoreMadeView, StoreUpgradedView, VERSION};

mod load;

pub(crate) async fn store(context: &Context, command: StoreCommand) -> Result<Exit, Error> {
    match command {
        StoreCommand::Init => init(context).await,
        StoreCommand::Upgrade => upgrade(context).await,
        StoreCommand::Check => check(context).await,
        StoreCommand::Stats => load::stats(context).await,
    }
}

async fn init(context: &Context) -> Result<Exit, Error> {
    if store_location::is_memory(context.store_given().0) {
        return Err(Error::usage(
            "cannot create a store in memory: it would end with this command",
            "name a store on disk: `sqlite:PATH` or `file:DIR`",
        ));
    }
    if let Some(url) = postgres_url(context) {
        let (before, _) = postgres::init(&url).await?;
        return made_or_there(context, postgres::name(&url), before.is_none());
    }
    let (store, made) = match context.store(None, Access::Read) {
        Ok(store) => (store, false),
        Err(Error::NoStore { .. } | Error::NoRuns { .. } | Error::NotFound { .. }) => {
            (context.store(None, Access::Create)?, true)
        }
        Err(error) => return Err(error),
    };
    let name = store.to_string();
    store.close().await?;
    made_or_there(context, name, made)
}

fn made_or_there(context: &Context, name: String, made: bool) -> Result<Exit, Error> {
    if context.output.json {
        context.output.document(&StoreMadeView { v: VERSION, store: name, made })?;
    } else if made {
        context.output.done(&format!("Made store {}", crate::output::shown(&name)))?;
    } else {
        context.output.note(&format!("Nothing to create, because store {name} already exists."));
    }
    Ok(Exit::Done)
}

async fn upgrade(context: &Context) -> Result<Exit, Error> {
    if let Some(url) = postgres_url(context) {
        let found = postgres::schema(&url).await?;
        // An upgrade makes no store.
        let (before, after) = if found.is_some() { postgres::init(&url).await? } else { (None, None) };
        let versions = before.zip(after);
        if versions.is_none() {
            let what = "tables of Waypost".to_owned();
            return Err(StoreError::NotFound { store: postgres::name(&url), what }.into());
        }
        return upgraded(context, postgres::name(&url), versions);
    }
    // Opening for reading upgrades nothing, and checks that the store exists.
    let store = context.store(None, Access::Read)?;
    let name = store.to_string();
    store.close().await?;
    let Some(path) = database(&name) else { return upgraded(context, name, None) };
    let before = schema_of(&path)?;
    if before < SCHEMA_VERSION {
        context.store(None, Access::Write)?.close().await?;
    }
    let after = schema_of(&path)?;
    upgraded(context, name, Some((before, after)))
}

fn upgraded(context: &Context, store: String, versions: Option<(u32, u32)>) -> Result<Exit, Error> {
    let (before, after) = versions.unzip();
    let changed = before != after;
    if context.output.json {
        context.output.document(&StoreUpgradedView {
            v: VERSION,
            store,
            upgraded: changed,
            before,
            after,
        })?;
        return Ok(Exit::Done);
    }
    match versions {
        Some((before, after)) if changed && store.starts_with("postgres:") => {
            context.output.done(&format!("Upgraded {store} from version {before} to {after}"))?;
        }
        Some((before, after)) if changed => context.output.done(&format!(
            "Upgraded {store} from version {before} to {after}; the backup is beside the store, as \
             `.v{before}-N.backup`"
        ))?,
        Some((_, after)) => context.output.note(&format!(
            "Nothing to upgrade, because store {store} has version {after}, the newest version supported."
        )),
        None => context
            .output
            .note(&format!("Nothing to upgrade, because store {store} is of a kind with a single version.")),
    }
    Ok(Exit::Done)
}

async fn check(context: &Context) -> Result<Exit, Error> {
    let store = context.store(None, Access::Read)?;
    let schema = schema(context, &store.to_string()).await?;
    let mut errors = store.inspect(None).await?;
    let (mut runs, mut newer) = (0, 0);
    let mut query = RunQuery { limit: PAGE_ITEMS_MAX, ..RunQuery::default() };
    loop {
        let mut page = store.runs(&query).await?;
        for run in &mut page.runs {
            if let Correction::Applied = run_status::correct(store.as_ref(), run).await? {
                errors.push(format!("run {}: newer checkpoints are damaged or missing", run.run));
            }
        }
        let listed = page.runs.into_iter().map(|run| (run.run, None));
        let unreadable = page.damaged.into_iter().map(|found| (found.run, Some(found.why)));
        for (run, why) in listed.chain(unreadable) {
            runs += 1;
            match store.inspect(Some(&run)).await {
                Ok(found) if found.is_empty() => errors.extend(why.map(|why| format!("run {run}: {why}"))),
                Ok(found) => errors.extend(found.into_iter().map(|error| format!("run {run}: {error}"))),
                Err(StoreError::Version { .. }) => newer += 1,
                // Deleted meanwhile.
                Err(StoreError::NotFound { .. }) => runs -= 1,
                Err(error) => errors.push(format!("run {run}: {error}")),
            }
        }
        match page.next {
            Some(cursor) => query.cursor = Some(cursor),
            None => break,
        }
    }
    let sound = errors.is_empty();
    let exit = match (sound, newer) {
        (false, _) => Exit::Damaged,
        (true, 0) => Exit::Done,
        (true, _) => Exit::Newer,
    };
    let view = StoreCheckedView { v: VERSION, store: store.to_string(), sound, schema, runs, newer, errors };
    if context.output.json {
        context.output.document(&view)?;
        return Ok(exit);
    }
    for error in &view.errors {
        context.output.answer(&format!("{} {error}", context.output.paint.red("DAMAGED")))?;
    }
    let version = view.schema.map(|version| format!(", version {version}")).unwrap_or_default();
    let counted = if view.runs == 1 { "1 run".to_owned() } else { format!("{} runs", view.runs) };
    if view.newer > 0 {
        context.output.warn(&format!("{} of the runs can only be checked by a newer version", view.newer));
    }
    let verdict = if sound { "is consistent" } else { "is not consistent" };
    let text = format!("Store {}{version}: the derived data of {counted} {verdict}", view.store);
    context.output.checked(exit, &text)?;
    context.output.note(&context.with_store("`waypost verify --all` checks every byte of every checkpoint."));
    Ok(exit)
}

/// Returns the schema version of the store with this name; `None` for a store without tables.
async fn schema(context: &Context, store: &str) -> Result<Option<u32>, Error> {
    match postgres_url(context) {
        Some(url) => postgres::schema(&url).await,
        None => Ok(database(store).map(|path| schema_of(&path)).transpose()?),
    }
}

/// Returns the address of the given store, if it is in PostgreSQL.
pub(super) fn postgres_url(context: &Context) -> Option<String> {
    match StoreUrl::parse(context.store_given().0?) {
        Ok(StoreUrl::Postgres(url)) => Some(url),
        _ => None,
    }
}

/// Returns the path of an SQLite store's database, by the store's name.
fn database(name: &str) -> Option<PathBuf> {
    match StoreUrl::parse(name) {
        Ok(StoreUrl::Sqlite(path)) => Some(path),
        _ => None,
    }
}
