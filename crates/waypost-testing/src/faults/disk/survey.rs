//! Searches for a power cut that breaks the promises of a program.

use std::fmt;

use super::{DiskCall, Sampling, SimDisk};

/// The coverage of a search. A survey with few states proves little: assert the counts too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Survey {
    /// Number of disk calls of the program, and so of power cuts before a call.
    pub calls: u64,
    /// Number of checked media states.
    pub states: u64,
}

/// A media state that breaks a promise.
#[derive(Debug, Clone)]
pub struct Loss {
    /// Number of the call before which the power was cut, counted from 0.
    pub call: u64,
    /// The call; `None` if the program had ended.
    pub before: Option<DiskCall>,
    /// Index of the state among the states of that power cut.
    pub state: u64,
    /// The changes lost and kept.
    pub story: String,
    /// The finding of the check.
    pub found: String,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {}, state {}: {}\nthe power was cut ", self.call, self.state, self.found)?;
        match &self.before {
            None => f.write_str("after the program's end")?,
            Some(DiskCall { action, path }) => write!(f, "before {action:?} of `{}`", path.display())?,
        }
        write!(f, "\n{}", self.story)
    }
}

/// Runs a program repeatedly, cuts the power before each call and after the end, and checks every possible
/// media state.
///
/// Each execution of `program` gets a copy of `start` and returns what it acknowledged, even if the disk
/// died. `check` gets the acknowledgement and a freshly mounted disk. It may use the disk freely, including a
/// nested search. The program must make the same calls in every execution.
///
/// # Errors
/// The first state for which `check` returns an error.
///
/// # Panics
/// If the calls differ between executions: then the search proves nothing.
pub fn first_loss<T>(
    start: &SimDisk,
    sampling: Sampling,
    program: impl Fn(&SimDisk) -> T,
    mut check: impl FnMut(&T, &SimDisk) -> Result<(), String>,
) -> Result<Survey, Box<Loss>> {
    let whole = start.fork();
    program(&whole);
    let first = start.call_count();
    let all = whole.calls();
    let mut survey = Survey { calls: whole.call_count() - first, states: 0 };
    for cut in first..=whole.call_count() {
        let disk = start.fork();
        disk.die_at(cut);
        let acknowledged = program(&disk);
        let made = disk.calls();
        assert!(
            all.starts_with(&made) && made.len() as u64 == cut,
            "the program makes other calls each time"
        );
        for (state, found) in (0..).zip(disk.crash_states_with(sampling)) {
            survey.states += 1;
            if let Err(what) = check(&acknowledged, &found) {
                let before = usize::try_from(cut).ok().and_then(|cut| all.get(cut)).cloned();
                let call = cut - first;
                return Err(Box::new(Loss { call, before, state, story: found.to_string(), found: what }));
            }
        }
    }
    Ok(survey)
}
