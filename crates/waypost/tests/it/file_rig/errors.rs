//! The file store on a disk that returns errors. Only durable records are acknowledged, earlier records stay, and
//! the run resumes once the disk works again.

use std::sync::Arc;

use waypost::disk::Disk;
use waypost::store::StoreError;
use waypost_testing::disk::{Action, DiskFault, Refusal, Sampling, SimDisk};

use super::{Program, Told, creates, disk_after, goes_on, promises, rotates, share};

/// Random draws after a power cut with too many states to list.
const DRAWS: usize = 20;
/// The states checked per power cut, one in [`STATES_SHARE`]. `file_rig::crash` checks more of them.
const STATES_MAX: usize = 40;
const STATES_SHARE: usize = 7;
/// One in `SHARE` pairs of a call and a fault is tried. The number is prime to their count, so that each fault is
/// tried.
const SHARE: usize = 61;

/// Returns all errors, and writes that stop early.
fn faults() -> impl Iterator<Item = DiskFault> {
    let refusals = Refusal::ALL.into_iter().map(DiskFault::Refuse);
    refusals.chain([1, 7, 100].map(DiskFault::ShortWrite))
}

/// The duration of a fault.
#[derive(Debug, Clone, Copy)]
enum Illness {
    Once,
    UntilHealed,
}

#[derive(Debug, Default)]
struct Tally {
    faults: u64,
    refused: u64,
    states: u64,
}

/// Tries each fault at each call of a program.
fn survives(start: &SimDisk, told: &Told, program: Program, illness: Illness) -> Tally {
    let whole = start.fork();
    program(Arc::new(whole.clone()), &mut told.clone()).unwrap();
    let calls = start.call_count()..whole.call_count();
    let mut tally = Tally::default();
    for (call, fault) in calls.flat_map(|call| faults().map(move |fault| (call, fault))).step_by(share(SHARE))
    {
        // An endless interruption is impossible; an interrupted call is repeated.
        if matches!(illness, Illness::UntilHealed) && fault == DiskFault::Refuse(Refusal::Interrupted) {
            continue;
        }
        let place = format!("{fault:?} at call {call} ({:?})", whole.calls()[usize::try_from(call).unwrap()]);
        let disk = start.fork();
        match illness {
            Illness::Once => disk.fail(call, fault),
            Illness::UntilHealed => disk.fail_from(call, fault),
        }
        let mut told = told.clone();
        let answer = program(Arc::new(disk.clone()), &mut told);
        disk.heal();
        tally.faults += 1;
        tally.refused += u64::from(answer.is_err());
        check_answer(answer, fault).unwrap_or_else(|error| panic!("{place}: {error}"));
        for state in after_a_cut(&disk, call) {
            tally.states += 1;
            promises(&told, &state)
                .unwrap_or_else(|what| panic!("{place}, then a power cut: {what}\n{state}"));
        }
        went_on_without_a_cut(&told, &disk).unwrap_or_else(|what| panic!("{place}: {what}"));
    }
    tally
}

/// Returns some of the states after a power cut now, the state with all data lost among them.
fn after_a_cut(disk: &SimDisk, seed: u64) -> impl Iterator<Item = SimDisk> {
    let count = if share(SHARE) == 1 { usize::MAX } else { STATES_MAX };
    disk.crash_states_with(Sampling { seed, draws: DRAWS }).take(count).step_by(STATES_SHARE)
}

/// Resumes the run on the disk as it is; the new acknowledgements must survive a power cut as well.
fn went_on_without_a_cut(told: &Told, disk: &SimDisk) -> Result<(), String> {
    promises(told, &disk.fork())?;
    let mut told = told.clone();
    let again: Program = if told.created { goes_on } else { creates };
    match again(Arc::new(disk.clone()), &mut told) {
        Ok(()) => {}
        // The run was made and not acknowledged.
        Err(StoreError::Exists { .. }) => return promises(&told, disk),
        Err(error) => return Err(format!("it does not go on: {error:?}")),
    }
    for state in after_a_cut(disk, 1) {
        promises(&told, &state).map_err(|what| format!("it went on, then a power cut: {what}\n{state}"))?;
    }
    Ok(())
}

/// The error must name the fault; short writes cause no error.
fn check_answer(answer: Result<(), StoreError>, fault: DiskFault) -> Result<(), String> {
    let Err(error) = answer else { return Ok(()) };
    let fits = match (&error, fault) {
        (_, DiskFault::ShortWrite(_)) => false,
        (
            StoreError::Full { .. } | StoreError::Create { .. },
            DiskFault::Refuse(Refusal::Full | Refusal::OverQuota),
        ) => true,
        (_, DiskFault::Refuse(Refusal::Full | Refusal::OverQuota)) => false,
        (StoreError::Io { .. } | StoreError::Create { .. }, DiskFault::Refuse(_)) => true,
        (_, DiskFault::Refuse(_)) => false,
    };
    if fits { Ok(()) } else { Err(format!("an answer that says something else: {error:?}")) }
}

#[test]
fn an_error_at_any_call_loses_nothing() {
    for illness in [Illness::Once, Illness::UntilHealed] {
        let (empty, none) = disk_after(&[]);
        let (started, told) = disk_after(&[creates]);
        let tallies = [
            survives(&empty, &none, creates, illness),
            survives(&started, &told, goes_on, illness),
            survives(&started, &told, rotates, illness),
        ];
        let sum = |count: fn(&Tally) -> u64| tallies.iter().map(count).sum::<u64>();
        let shown = [sum(|tally| tally.faults), sum(|tally| tally.refused), sum(|tally| tally.states)];
        assert!(shown[0] > 20 && shown[1] > 3 && shown[2] > 20, "{illness:?} shows little: {tallies:?}");
    }
}

#[test]
fn a_failed_sync_is_not_tried_again() {
    let (start, told) = disk_after(&[creates]);
    let whole = start.fork();
    goes_on(Arc::new(whole.clone()), &mut told.clone()).unwrap();
    let calls = whole.calls();
    let syncs = (0_u64..).zip(&calls).skip(usize::try_from(start.call_count()).unwrap());

    for (call, made) in syncs.filter(|(_, made)| matches!(made.action, Action::Sync | Action::SyncDir)) {
        let disk = start.fork();
        disk.fail(call, DiskFault::Refuse(Refusal::Broken));
        let answer = goes_on(Arc::new(disk.clone()) as Arc<dyn Disk>, &mut told.clone());

        assert!(answer.is_err(), "{made:?} failed and nobody was told");
        let after = &disk.calls()[usize::try_from(call).unwrap() + 1..];
        assert!(!after.contains(made), "{made:?} failed and was tried again");
    }
}
