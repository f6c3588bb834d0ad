//! Saving, over a disk that dies and fails.

use super::*;

#[tokio::test]
async fn saving_takes_no_name_that_is_taken_unless_asked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.json");
    fs::write(&path, "precious").unwrap();
    let portable = small().await;

    let refused = portable.save(&path, SaveMode::New).unwrap_err();
    assert!(matches!(refused, SaveError::Exists { .. }), "{refused:?}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    portable.save(&path, SaveMode::Replace).unwrap();

    assert_eq!(Portable::load(&path).unwrap(), portable);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing unfinished is left");
    for no_file in ["..", "/", ""] {
        assert!(matches!(portable.save(Path::new(no_file), SaveMode::New), Err(SaveError::Io { .. })));
    }
    let nowhere = dir.path().join("no/folder.json");
    assert!(matches!(portable.save(&nowhere, SaveMode::New), Err(SaveError::Io { .. })));
}

/// Whether a file of that name is there, and sound; it may be `other` instead.
fn found(disk: &SimDisk, path: &Path, portable: &Portable, other: Option<&[u8]>) -> Result<bool, String> {
    match disk.read(path, PORTABLE_BYTES_MAX) {
        Err(_) if other.is_none() => Ok(false),
        Err(error) => Err(format!("nothing is there: {error}")),
        Ok(bytes) if Some(bytes.as_slice()) == other => Ok(false),
        Ok(bytes) => match Portable::from_text(&bytes) {
            Ok(read) if read == *portable => Ok(true),
            other => Err(format!("something else is there: {other:?}")),
        },
    }
}

#[tokio::test]
async fn a_power_cut_leaves_the_file_whole_or_what_was_before() {
    let portable = small().await;
    let path = Path::new("disk/a.json");
    let empty = SimDisk::with_folder("disk");
    let taken = SimDisk::with_folder("disk");
    other().await.save_to(&taken, path, SaveMode::New).unwrap();
    taken.settle();
    let old = taken.read(path, PORTABLE_BYTES_MAX).unwrap();

    for (start, mode, old) in [
        (&empty, SaveMode::New, None),
        (&empty, SaveMode::Replace, None),
        (&taken, SaveMode::Replace, Some(old)),
    ] {
        let survey = first_loss(
            start,
            Sampling { seed: 1, draws: 100 },
            |disk| portable.save_to(disk, path, mode).is_ok(),
            |acknowledged, disk| match found(disk, path, &portable, old.as_deref())? {
                false if *acknowledged => Err("it was acknowledged and is not there".to_owned()),
                _ => Ok(()),
            },
        );
        let survey = survey.unwrap_or_else(|loss| panic!("{loss}"));
        assert!(survey.calls >= 5 && survey.states > 10, "{survey:?} shows nothing");
    }
}

#[tokio::test]
async fn a_disk_error_at_any_call_is_told_and_leaves_what_was_before() {
    let portable = small().await;
    let path = Path::new("disk/a.json");
    let taken = SimDisk::with_folder("disk");
    other().await.save_to(&taken, path, SaveMode::New).unwrap();
    taken.settle();
    let old = taken.read(path, PORTABLE_BYTES_MAX).unwrap();
    let first = taken.call_count();
    let whole = taken.fork();
    portable.save_to(&whole, path, SaveMode::Replace).unwrap();

    let mut told = 0;
    for call in first..whole.call_count() {
        for refusal in Refusal::ALL {
            let disk = taken.fork();
            disk.fail(call, DiskFault::Refuse(refusal));
            let saved = portable.save_to(&disk, path, SaveMode::Replace);
            disk.heal();
            let there = found(&disk, path, &portable, Some(&old)).unwrap();
            assert!(there || saved.is_err(), "call {call}, {refusal}");
            let temps = disk.files().len() - 1;
            assert_eq!(temps, 0, "call {call}, {refusal}: an unfinished file is left");
            told += usize::from(saved.is_err());
        }
        let disk = taken.fork();
        disk.fail(call, DiskFault::ShortWrite(7));
        portable.save_to(&disk, path, SaveMode::Replace).unwrap();
        assert!(found(&disk, path, &portable, None).unwrap());
    }
    assert!(told > 10, "{told} errors show nothing");
}
