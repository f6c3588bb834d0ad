//! The folder of the steps of a run in this process: a base of workers, or the folder of the submission.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use serde_json::Value;
use waypost::record::RunRecord;
use waypost::store::Store;

use crate::error::Error;
use crate::format::text::quoted;
use crate::run::needs::BASE;
use crate::store_location;

/// The folders of bases by name, set once before any command runs.
static FOLDERS: OnceLock<BTreeMap<String, PathBuf>> = OnceLock::new();

/// Sets the folders of bases.
///
/// # Errors
/// [`Error::Unreadable`]: a folder does not exist.
pub(crate) fn set(bases: &[(String, String)]) -> Result<(), Error> {
    let folder = |(name, folder): &(String, String)| {
        let path = PathBuf::from(folder);
        let found = path.canonicalize();
        Ok((name.clone(), found.map_err(|source| Error::Unreadable { path, source })?))
    };
    let folders = bases.iter().map(folder).collect::<Result<_, Error>>()?;
    FOLDERS.get_or_init(|| folders);
    Ok(())
}

/// Returns the folders of bases, by name.
pub(crate) fn folders() -> BTreeMap<String, PathBuf> {
    FOLDERS.get().cloned().unwrap_or_default()
}

/// Returns the name of the base of a run, if any.
pub(crate) fn name_of(run: &RunRecord) -> Option<&str> {
    run.settings.get(BASE).and_then(Value::as_str)
}

/// Returns the folder of the steps of a run. Without a folder for its base: the folder of the submission.
pub(crate) fn folder_of(store: &dyn Store, run: &RunRecord) -> PathBuf {
    let of_base = name_of(run).and_then(|name| FOLDERS.get()?.get(name).cloned());
    of_base.unwrap_or_else(|| store_location::from_home(store.home(), run.base.as_deref().unwrap_or(".")))
}

/// Refuses to run steps without a folder for the base of the run.
///
/// # Errors
/// [`Error::Usage`]; nothing was started.
pub(crate) fn refuse_unknown(run: &RunRecord) -> Result<(), Error> {
    let unknown = name_of(run).filter(|name| !folders().contains_key(*name));
    match unknown {
        None => Ok(()),
        Some(name) => Err(Error::usage(
            format!(
                "cannot run steps of run {} here: they belong to a folder that workers call `{name}`",
                run.run
            ),
            format!(
                "name the folder with `--base {}=DIR`, or leave the run to the workers with `--queue`",
                quoted(name)
            ),
        )),
    }
}
