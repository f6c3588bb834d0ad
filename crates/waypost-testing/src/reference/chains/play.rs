//! Plays of random chains.

use super::super::definition::Name;
use super::super::engine::Halt;
use super::super::generate::{chance, one_of};
use super::super::play::Statistics;
use super::super::rule::Rules;
use super::run::{ChainRun, Node, Stop};
use crate::random::seed::Seeded;

const IDS: [&str; 4] = ["a", "b", "c", "d"];
const ATTEMPTS_MAX: u32 = 12;
const CRASHING_ATTEMPTS: u32 = 6;
/// With at least this retention, a short chain keeps all states, so every rerun has a reason.
pub(super) const RETENTION_OF_ALL: usize = 20;

/// Plays a random chain and returns its defects.
pub fn play(seed: u64, rules: &Rules, statistics: &mut Statistics) -> Vec<String> {
    let mut random = Seeded::new(seed);
    let nodes = nodes(&mut random);
    let states_max = one_of(&mut random, &[1, 2, 4, 50]);
    let mut run = ChainRun::new(nodes, states_max, rules.clone());
    for number in 0..2 + random.below(4) {
        let found = round(&mut random, &mut run, number == 0, statistics);
        if !found.is_empty() {
            return found;
        }
        statistics.rests += 1;
    }
    statistics.executed += run.world.executed.len();
    statistics.asked += run.asked;
    statistics.rejoined += run.rejoined;
    Vec::new()
}

pub(super) fn nodes(random: &mut Seeded) -> Vec<Node> {
    let ids = &IDS[..2 + random.below(3) as usize];
    let node = |id: &&str| Node {
        id: Name::from(*id),
        modulus: one_of(random, &[1, 2, 5]),
        file: chance(random, 70).then(|| Name::from(*id)),
        file_modulus: one_of(random, &[1, 2, 5]),
        idempotent: !chance(random, 15),
        then: (0..=random.below(3)).map(|_| Name::from(one_of(random, ids))).collect(),
    };
    ids.iter().map(node).collect()
}

fn round(
    random: &mut Seeded,
    run: &mut ChainRun,
    is_first: bool,
    statistics: &mut Statistics,
) -> Vec<String> {
    let mut is_at_rest = false;
    for attempt in 0..ATTEMPTS_MAX {
        if !is_first && (attempt == 0 || chance(random, 40)) {
            upset(random, run);
        }
        let crashes = attempt < CRASHING_ATTEMPTS && chance(random, 60);
        (run.commits, run.crash_at) = (0, crashes.then(|| random.below(10) as usize));
        match run.resume() {
            Ok(()) => {
                is_at_rest = true;
                break;
            }
            Err(Stop::Halt(Halt::Crash)) => statistics.crashes += 1,
            Err(stop) => return vec![format!("no rest: {stop:?}")],
        }
    }
    if !is_at_rest {
        return vec!["no rest".to_owned()];
    }
    run.crash_at = None;
    let mut found = run.check();
    if run.states_max > RETENTION_OF_ALL {
        found.extend(run.world.needless.iter().map(|path| format!("{path:?} ran needlessly")));
    }
    let before = run.world.executed.len();
    match run.resume() {
        Ok(()) => {}
        Err(stop) => found.push(format!("no rest: {stop:?}")),
    }
    found.extend(run.world.executed[before..].iter().map(|path| format!("{path:?} ran in a second resume")));
    found
}

fn upset(random: &mut Seeded, run: &mut ChainRun) {
    run.world.files.retain(|_, _| !chance(random, 25));
    let ids: Vec<Name> = run.nodes.iter().map(|node| node.id.clone()).collect();
    for id in ids {
        if chance(random, 30) {
            run.world.hidden.insert(id, one_of(random, &[0, 0, 1, 3]));
        }
    }
}
