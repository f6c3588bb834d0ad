//! Takes up the child branches of a run: those that still count, with as little in memory as will do.

use std::collections::HashMap;

use crate::id::BranchPath;
use crate::record::{FrontierEntry, Position, Status, WaitKind};
use crate::store::{Head, Lease, Page, StoreError};

use super::begin::{decode_state, reopen};
use super::chain::Chain;
use super::fan::{FanOut, Items, Queued};
use super::line::{Line, LineId, MAIN, Opener};
use super::schedule::children_of;
use super::session::Session;
use super::snapshot::position_of;
use super::{Program, RunError};

/// Reads the newest record of each open branch, page by page. A branch that its opener no longer waits for is left
/// alone; one that has not begun is only noted; the others go on.
pub(super) async fn take_up<P: Program>(session: &mut Session<'_, P>, lease: &Lease) -> Result<(), RunError> {
    let mut found = Found { lines: HashMap::from([(BranchPath::main(), MAIN)]), indexes: HashMap::new() };
    open_fans(session, &mut found, MAIN).await?;
    if session.lines.get(MAIN).fans.is_empty() {
        return Ok(());
    }
    let mut page = Page::default();
    loop {
        let heads = session.engine.store.heads(lease.run(), &page).await?;
        for head in heads.heads {
            if !head.record.header().branch.is_main() {
                take_up_one(session, lease, &mut found, head).await?;
            }
        }
        match heads.next {
            Some(cursor) => page.cursor = Some(cursor),
            None => break,
        }
    }
    let lines: Vec<LineId> = session.lines.iter().map(|(id, _)| id).collect();
    for id in lines {
        for fan in &mut session.lines.get_mut(id).fans {
            fan.ended = fan.opened - fan.ended;
            fan.queue.make_contiguous().sort_by_key(|queued| queued.index);
        }
        session.touched.insert(id);
    }
    Ok(())
}

/// What was found so far.
struct Found {
    lines: HashMap<BranchPath, LineId>,
    /// Of a fan-out, by the line and the place of its step: the index of each key.
    indexes: HashMap<(LineId, usize), HashMap<String, u64>>,
}

/// Notes the fan-outs that a branch is in the middle of. Until all heads are read, `ended` counts the open children.
async fn open_fans<P: Program>(
    session: &mut Session<'_, P>,
    found: &mut Found,
    id: LineId,
) -> Result<(), RunError> {
    let line = session.lines.get(id);
    let fanned: Vec<FrontierEntry> =
        line.position.frontier.iter().filter(|entry| entry.fan.is_some()).cloned().collect();
    for entry in fanned {
        let line = session.lines.get(id);
        let (Some(fan), Some(place)) = (entry.fan, line.shape.place(entry.step.as_str())) else { continue };
        let source = match fan.items {
            Some(at) => Items::Frozen { run: line.chain.run.clone(), at },
            None => Items::named(&children_of(line, place).named),
        };
        let mut index = HashMap::new();
        let mut reader = source.reader(session.engine.store.clone(), 0).await?;
        while let Some(item) = reader.next().await? {
            index.insert(item.key, item.index);
        }
        found.indexes.insert((id, place), index);
        let revisited = entry.at.epoch > 0 || entry.at.iteration.iter().any(|pass| *pass > 1);
        let mut out = FanOut::new(place, source, fan.total, revisited);
        out.opened = fan.opened;
        session.lines.get_mut(id).fans.push(out);
    }
    Ok(())
}

async fn take_up_one<P: Program>(
    session: &mut Session<'_, P>,
    lease: &Lease,
    found: &mut Found,
    head: Head,
) -> Result<(), RunError> {
    let branch = head.record.header().branch.clone();
    let Some((name, key)) = branch.opened_by() else { return Ok(()) };
    let Some(parent) = branch.parent().and_then(|parent| found.lines.get(&parent).copied()) else {
        return Ok(());
    };
    let above = session.lines.get(parent);
    let Some(place) = above.shape.opener(&name) else { return Ok(()) };
    let step = above.step_id(place);
    let position = position_of(&head.record)?;
    let Some(fan) = above.position.frontier.iter().find(|e| e.step == *step).and_then(|e| e.fan.as_ref())
    else {
        return Ok(());
    };
    let index = found.indexes.get(&(parent, place)).and_then(|indexes| indexes.get(&key)).copied();
    let Some(index) = index.filter(|_| position.origin == Some(fan.since)) else { return Ok(()) };
    for damage in &head.damaged {
        session.engine.store.quarantine(lease, damage).await?;
        session.repaired.push(damage.clone());
    }
    let out = session.lines.get_mut(parent).fan_mut(place);
    out.ended += 1;
    let seq = head.record.header().seq;
    if is_fresh(&position) && head.next == seq + 1 {
        out.queue.push_back(Queued { branch, index, seq });
        return Ok(());
    }
    let shape = &*children_of(session.lines.get(parent), place).shape;
    let state = decode_state(session.program, shape.level(), &head.record)?;
    let mut chain = Chain::child(&session.lines.get(parent).chain, branch.clone());
    chain.next = head.next;
    chain.prev = Some(head.record.digest());
    chain.basis = (head.next != seq + 1).then_some(seq);
    chain.repair = head.next != seq + 1;
    let around = session.lines.get(parent).entry(place).at.iteration.clone();
    let mut line = Line::new(chain, shape, position, state);
    line.opener = Some(Opener { line: parent, place, index });
    line.around = around;
    reopen(&mut line);
    line.is_resting = line.rests();
    let resting = line.is_resting;
    let id = session.lines.add(line);
    session.lines.get_mut(parent).fan_mut(place).active += usize::from(!resting);
    found.lines.insert(branch, id);
    open_fans(session, found, id).await
}

/// Says whether a child has been opened and nothing more.
fn is_fresh(position: &Position) -> bool {
    let untouched = |entry: &FrontierEntry| {
        entry.status == Status::Ready
            && entry.at.attempt == 0
            && entry.memos == 0
            && entry.fan.is_none()
            && !entry.waits.iter().any(|wait| wait.on == WaitKind::Resume)
    };
    position.steps_started == 0 && position.frontier.iter().all(untouched)
}

/// Returns the newest records that count: those of the main branch, and of children that their opener waits for.
///
/// Heads come with parents before their children.
pub(super) fn live(heads: Vec<Head>) -> Result<Vec<Head>, StoreError> {
    let mut fans: HashMap<BranchPath, Vec<u64>> = HashMap::new();
    let mut kept = Vec::with_capacity(heads.len());
    for head in heads {
        let branch = head.record.header().branch.clone();
        let position = position_of(&head.record)?;
        let counts = match (branch.parent(), position.origin) {
            (Some(parent), Some(origin)) => fans.get(&parent).is_some_and(|open| open.contains(&origin)),
            // A child without an origin is one of a foreign program; it counts.
            _ => true,
        };
        if counts {
            let open = position.frontier.iter().filter_map(|entry| Some(entry.fan.as_ref()?.since));
            fans.insert(branch, open.collect());
            kept.push(head);
        }
    }
    Ok(kept)
}
