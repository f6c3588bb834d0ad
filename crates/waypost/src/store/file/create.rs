//! Atomic creation and deletion of a run's folder.
//!
//! A run is built as `runs/.tmp-RUN`, synced, and renamed into place. The next holder of the run lock removes the
//! leftovers of a crash. A deletion begins with a rename to `deleting/RUN`; the next writer completes an
//! interrupted deletion.

use std::io;
use std::path::Path;

use crate::id::RunId;
use crate::record::SealedRun;
use crate::store::folder::{
    TEMP_PREFIX, begin_deletion, create_temp, deletions, end_deletion, is_deleting, remove_folder,
    remove_leftovers,
};
use crate::store::{Batch, FIRST_TOKEN, Lease, StoreError};
use crate::system::disk::{Disk, write_whole};
use crate::system::lock::{Holder, RunLock};

use super::FileStore;
use super::format::{self, CommitFile, FILE_BYTES_MAX, OrdinalFile, Small};
use super::lease::{Seat, locked, sync_new_folder};
use super::paths::{NEWEST_FILE, RUN_COPY_FILE, RUN_FILE, RunPaths};
use super::read::read_error;
use super::run_record::{self, read_run};
use super::write::{Writer, seal, write_sidecar};

const ORDINAL_FILE: &str = "ordinal.json";

impl FileStore {
    pub(super) fn create_run(
        &self,
        run: &SealedRun,
        first: &Batch,
        holder: &Holder,
    ) -> Result<Lease, StoreError> {
        let name = &run.record().run;
        self.end_deletions()?;
        let seat = self.seat(name);
        let mut seat = locked(&seat);
        if self.is_there(name)? {
            return Err(StoreError::Exists { run: name.clone() });
        }
        self.make_folders()?;
        let lock = self.lock_run(name, &seat, holder)?;
        if self.is_there(name)? || self.is_deleting(name)? {
            return Err(StoreError::Exists { run: name.clone() });
        }
        let mut writer = Writer::new(self.disk.clone(), name.clone(), self.run_paths(name), FIRST_TOKEN);
        let commit = writer.commit_of(first)?;
        let ordinal = self.with_store_lock(|| self.next_ordinal())?;
        let temp = self.temp_folder(name);
        let built = self.build(&temp, run, &commit, ordinal).and_then(|()| self.put_in_place(&temp, name));
        if let Err(error) = built {
            // Best effort: if this fails, the next holder of the lock of this run removes the folder.
            let _ = remove_folder(self.disk.as_ref(), &temp);
            return Err(error);
        }
        writer.take_in(&commit);
        writer.configure(run.record(), self.retention);
        if let Some(folder) = &writer.folder {
            folder.committed(&first.records);
        }
        let lease = Self::seat_writer(&mut seat, writer, lock, holder);
        if first.release {
            seat.release();
        }
        Ok(lease)
    }

    pub(super) fn is_there(&self, run: &RunId) -> Result<bool, StoreError> {
        let paths = self.run_paths(run);
        for path in [paths.root.join(RUN_FILE), paths.root.join(RUN_COPY_FILE), paths.history()] {
            match self.disk.metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(read_error(&path, source)),
                Ok(_) => return Ok(true),
            }
        }
        Ok(false)
    }

    pub(super) fn check_there(&self, run: &RunId) -> Result<(), StoreError> {
        if self.is_there(run)? { Ok(()) } else { Err(StoreError::no_run(self, run)) }
    }

    /// Returns true if the run has a folder, even with only a log.
    fn is_left(&self, run: &RunId) -> Result<bool, StoreError> {
        let root = self.run_paths(run).root;
        match self.disk.metadata(&root) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(read_error(&root, source)),
        }
    }

    /// Checks that the run has a folder or a tombstone to delete.
    fn check_left(&self, run: &RunId) -> Result<(), StoreError> {
        if self.is_left(run)? || self.is_deleting(run)? { Ok(()) } else { Err(StoreError::no_run(self, run)) }
    }

    fn make_folders(&self) -> Result<(), StoreError> {
        for path in [self.dir.clone(), self.runs_folder()] {
            sync_new_folder(self.disk.as_ref(), &path)
                .map_err(|source| StoreError::Create { path: path.clone(), source })?;
        }
        Ok(())
    }

    /// Returns the ordinal of a new run, greater than all earlier ordinals. The caller holds the store lock.
    fn next_ordinal(&self) -> Result<u64, StoreError> {
        let disk = self.disk.as_ref();
        let path = self.dir.join(ORDINAL_FILE);
        let failed = |source| StoreError::of_write("write", path.display().to_string(), source);
        remove_leftovers(disk, &self.dir).map_err(failed)?;
        let counted = match disk.read(&path, FILE_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            text => OrdinalFile::open(&text.map_err(|source| read_error(&path, source))?).ok(),
        };
        let newest = match counted {
            Some(counted) => counted.newest,
            None => self.greatest_ordinal()?,
        } + 1;
        let (temp, mut file) = create_temp(disk, &self.dir).map_err(failed)?;
        let text = OrdinalFile { newest }.seal();
        let written = write_whole(file.as_mut(), &text).and_then(|()| file.sync());
        let placed = written.and_then(|()| disk.rename(&temp, &path));
        if let Err(source) = placed {
            let _ = disk.remove(&temp);
            return Err(failed(source));
        }
        disk.sync_dir(&self.dir).map_err(failed)?;
        Ok(newest)
    }

    fn greatest_ordinal(&self) -> Result<u64, StoreError> {
        let mut greatest = 0;
        for run in self.run_ids()? {
            if let Some((ordinal, _)) = read_run(self.disk.as_ref(), &run, &self.run_paths(&run))? {
                greatest = greatest.max(ordinal);
            }
        }
        Ok(greatest)
    }

    fn temp_folder(&self, run: &RunId) -> std::path::PathBuf {
        self.runs_folder().join(format!("{TEMP_PREFIX}{run}"))
    }

    fn build(
        &self,
        temp: &Path,
        run: &SealedRun,
        commit: &CommitFile,
        ordinal: u64,
    ) -> Result<(), StoreError> {
        let disk = self.disk.as_ref();
        let paths = RunPaths { root: temp.to_owned() };
        let text = seal(commit, &run.record().run)?;
        let failed = |source| StoreError::of_write("write", temp.display().to_string(), source);
        let build = || {
            remove_folder(disk, temp)?;
            disk.create_dir(temp)?;
            disk.create_dir(&paths.history())?;
            for name in [RUN_FILE, RUN_COPY_FILE] {
                write_synced(disk, &temp.join(name), &format::seal_run(run, ordinal))?;
            }
            write_sidecar(disk, &paths, commit.number, &text);
            write_synced(disk, &paths.commit(commit.number), &text)?;
            // Best effort: some file systems lack hard links.
            let _ = disk.hard_link(&paths.commit(commit.number), &temp.join(NEWEST_FILE));
            disk.sync_dir(&paths.history())?;
            disk.sync_dir(temp)
        };
        build().map_err(failed)
    }

    fn put_in_place(&self, temp: &Path, run: &RunId) -> Result<(), StoreError> {
        let root = self.run_paths(run).root;
        let runs = self.runs_folder();
        match self.disk.rename(temp, &root) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty
                ) =>
            {
                return Err(StoreError::Exists { run: run.clone() });
            }
            renamed => {
                renamed.map_err(|source| StoreError::of_write("write", root.display().to_string(), source))?
            }
        }
        self.disk.sync_dir(&runs).map_err(|source| {
            // The run was not acknowledged: remove its folder, best effort.
            let _ = self.disk.rename(&root, temp);
            StoreError::of_write("sync", runs.display().to_string(), source)
        })
    }

    pub(super) fn delete_run(&self, run: &RunId) -> Result<(), StoreError> {
        self.check_left(run)?;
        let seat = self.seat(run);
        let mut seat = locked(&seat);
        let lock = self.lock_to_delete(run, &seat)?;
        self.check_left(run)?;
        self.refuse_newer(run)?;
        if self.is_left(run)? {
            begin_deletion(self.disk.as_ref(), &self.dir, run)
                .map_err(|source| self.not_removed(run, source))?;
        }
        self.remove_files(run, &mut seat, lock)
    }

    /// Completes interrupted deletions. A deletion that fails is left to the next writer.
    pub(super) fn end_deletions(&self) -> Result<(), StoreError> {
        let begun =
            deletions(self.disk.as_ref(), &self.dir).map_err(|source| read_error(&self.dir, source))?;
        for run in begun {
            let seat = self.seat(&run);
            let mut seat = locked(&seat);
            let Ok(lock) = self.lock_to_delete(&run, &seat) else { continue };
            // Another writer may have completed the deletion before this process got the lock.
            if self.is_deleting(&run)? {
                let _ = self.remove_files(&run, &mut seat, lock);
            }
        }
        Ok(())
    }

    fn lock_to_delete(&self, run: &RunId, seat: &Seat) -> Result<Option<RunLock>, StoreError> {
        let holder = Holder::here(jiff::Timestamp::UNIX_EPOCH)
            .map_err(|source| read_error(Path::new("the process table"), source))?;
        self.lock_run(run, seat, &holder)
    }

    fn remove_files(&self, run: &RunId, seat: &mut Seat, lock: Option<RunLock>) -> Result<(), StoreError> {
        seat.release();
        end_deletion(self.disk.as_ref(), &self.dir, run, lock)
            .map_err(|source| self.not_removed(run, source))?;
        self.remembered.forget(run);
        *seat = Seat::default();
        Ok(())
    }

    fn is_deleting(&self, run: &RunId) -> Result<bool, StoreError> {
        is_deleting(self.disk.as_ref(), &self.dir, run).map_err(|source| read_error(&self.dir, source))
    }

    fn not_removed(&self, run: &RunId, source: io::Error) -> StoreError {
        StoreError::of_write("remove", self.run_paths(run).root.display().to_string(), source)
    }
}

impl FileStore {
    /// Refuses a run whose record or newest commit was written by a newer program.
    fn refuse_newer(&self, run: &RunId) -> Result<(), StoreError> {
        let reader = self.reader(run);
        let frozen = run_record::refuse_newer(self.disk.as_ref(), run, &reader.paths);
        match frozen.and(reader.newest()) {
            Err(error @ StoreError::Version { .. }) => Err(error),
            // Damage does not prevent a deletion.
            _ => Ok(()),
        }
    }
}

fn write_synced(disk: &dyn Disk, path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = disk.create_new(path)?;
    write_whole(file.as_mut(), text)?;
    file.sync()
}
