//! The folder in which the commands of a script stand: which of its `cd` a later step must say again.
//!
//! A script that goes into a folder and back may remove it after that, so that it cannot be gone into again.

use super::itself;
use super::scan::Unit;
use super::split::{Kind, is_pure};
use super::{mentions, verb};

/// Returns where a `cd` goes, if it says one place.
pub(super) fn target(command: &[String]) -> Option<&str> {
    let (cd, arguments) = verb(command).split_first()?;
    let mut places = arguments.iter().filter(|word| !matches!(word.as_str(), "--" | "-P" | "-L"));
    let place = places.next().filter(|place| cd == "cd" && *place != "-")?;
    places.next().is_none().then_some(place)
}

/// Says whether a command goes to a folder, or else says something and fails.
pub(super) fn goes_or_fails(unit: &Unit) -> bool {
    let [cd, rest @ .., exit] = unit.commands.as_slice() else { return false };
    let only_says = |command: &Vec<String>| {
        matches!(command[0].as_str(), "echo" | "printf") && command.iter().all(|word| is_pure(word))
    };
    target(cd).is_some_and(is_pure)
        && rest.iter().all(only_says)
        && (exit[0] == "exit" && exit[1..] != ["0"])
        && unit.text.matches("||").count() == 1
        && !unit.text.replace("||", "").contains(['|', '<'])
        && !unit.text.contains("&&")
        && !unit.background
}

/// Leaves out the way to the folder of the script where the steps are there already.
pub(super) fn drop_first_cd(units: &[Unit], kinds: &mut [Kind]) {
    let is_move =
        |command: &Vec<String>| verb(command).first().is_some_and(|word| word == "cd" || word == "pushd");
    let moves = |unit: &Unit| unit.function.is_none() && unit.commands.iter().any(is_move);
    if let Some(first) = units.iter().position(moves)
        && kinds[first] == Kind::Again
        && target(&units[first].commands[0]).is_some_and(itself::is_folder)
    {
        kinds[first] = Kind::Dropped("steps run in the folder of the workflow file");
    }
}

/// Says a `cd` again so that nothing is done where it fails.
pub(super) fn said_again(unit: &Unit, exits: bool) -> String {
    let goes = unit.commands.len() == 1 && target(&unit.commands[0]).is_some();
    match goes && !exits {
        false => unit.text.clone(),
        true if unit.text.contains('#') => format!("{{ {}\n}} || exit", unit.text),
        true => format!("{} || exit", unit.text),
    }
}

/// Leaves out of what is said again the ways from which a later one has come back.
pub(super) fn standing(units: &[Unit], again: &[usize]) -> Vec<usize> {
    let mut kept: Vec<usize> = Vec::new();
    for place in again {
        let to = units[*place].commands.first().and_then(|command| target(command));
        let Some(to) = to.filter(|_| units[*place].function.is_none()) else {
            kept.push(*place);
            continue;
        };
        let is_cd = |place: &usize| {
            units[*place].function.is_none()
                && units[*place].commands.first().is_some_and(|command| target(command).is_some())
        };
        let is_absolute = is_absolute(units, to);
        // What lies between may be about the folder in which it stands.
        let begin = match is_absolute {
            true => kept.iter().position(is_cd),
            false => kept.iter().rposition(is_cd),
        };
        let moot = begin
            .filter(|begin| kept[*begin..].iter().all(|place| is_cd(place) || is_anywhere(&units[*place])));
        match moot {
            Some(_) if is_absolute => kept.retain(|place| !is_cd(place)),
            Some(begin) if is_back(target(&units[kept[begin]].commands[0]).unwrap_or_default(), to) => {
                kept.remove(begin);
                continue;
            }
            _ => {}
        }
        kept.push(*place);
    }
    kept
}

/// Says whether one way leads back from another.
fn is_back(there: &str, back: &str) -> bool {
    let parts = |way: &str| {
        way.trim_matches('"').trim_end_matches('/').split('/').map(str::to_owned).collect::<Vec<_>>()
    };
    let odd = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
    let (there, back) = (parts(there), parts(back));
    there.len() == back.len()
        && back.iter().all(|part| part == "..")
        && there.iter().all(|part| !part.is_empty() && part != "." && part != ".." && !part.contains(odd))
}

/// Says whether a place is the same from every folder.
fn is_absolute(units: &[Unit], place: &str) -> bool {
    let begins = |text: &str| {
        let text = text.trim_start_matches('"');
        text.starts_with('/')
            || text.starts_with("$PWD")
            || text.starts_with("$(pwd")
            || (text.starts_with("$(cd ") && text.contains("pwd"))
    };
    let place = place.trim_start_matches('"');
    if place.starts_with('/') {
        return true;
    }
    let Some(name) = place.strip_prefix('$').map(|name| name.trim_start_matches('{')) else { return false };
    let name = &name[..name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len())];
    let words = units.iter().flat_map(|unit| unit.commands.iter().flatten());
    let mut values = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    !name.is_empty() && values.next().is_some_and(begins) && values.next().is_none()
}

/// Says whether what is said again is the same in every folder.
fn is_anywhere(unit: &Unit) -> bool {
    let reads = |command: &Vec<String>| matches!(command[0].as_str(), "source" | ".");
    unit.function.is_some()
        || !(unit.commands.iter().any(reads)
            || ["PWD", "pwd", "cd", itself::ITSELF].iter().any(|word| mentions(&unit.text, word)))
}
