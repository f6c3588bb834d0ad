//! The search for one power cut that makes a program break its promises.

use std::fmt;

use super::{Call, Sampling, SimDisk};

/// What a search has looked at. A survey with few states shows little: check the counts too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Survey {
    /// How many calls the program makes on the disk, so before how many of them it was cut.
    pub calls: u64,
    /// How many states of the media were checked.
    pub states: u64,
}

/// A state of the media that breaks a promise.
#[derive(Debug, Clone)]
pub struct Loss {
    /// The power was cut right before this call of the program, counted from 0.
    pub call: u64,
    /// What that call is; nothing if the program had ended.
    pub before: Option<Call>,
    /// The number of the state among those of that power cut, counted from 0.
    pub state: u64,
    /// What the power cut took and left.
    pub story: String,
    /// What the check found.
    pub found: String,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {}, state {}: {}\nthe power was cut ", self.call, self.state, self.found)?;
        match &self.before {
            None => f.write_str("after the program's end")?,
            Some(Call { action, path }) => write!(f, "before {action:?} of `{}`", path.display())?,
        }
        write!(f, "\n{}", self.story)
    }
}

/// Runs a program again and again, cuts the power before each call that it makes and after its end, and checks every
/// state that the media can then be in.
///
/// Each time, `program` gets a disk of its own, like `start`, and returns what it has acknowledged, also when the
/// disk died under it. `check` gets that and a disk that was just switched on; it may use the disk in any way, and
/// run a search of its own on it. The program must make the same calls each time.
///
/// # Errors
/// The first state for which `check` says what is wrong.
///
/// # Panics
/// If the program makes different calls from one time to the next: then nothing was shown.
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
