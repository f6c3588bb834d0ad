//! The verifier: calls the probes within limits, and returns packs with verdicts.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::try_join_all;
use futures_util::stream::{self, FuturesUnordered, StreamExt as _};
use tokio::time::Instant;

use crate::record::{Claim, Occasion, Pack, Verdict};
use crate::system::clock::{Clock, SystemClock};

use super::{Cost, ExistsProbe, ExitProbe, Finding, Probe, Sha256Probe, Site, other_names};

/// Most attempts at a check. With doubling pauses the last comes after three quarters of a second; later
/// changes are left to the caller's next try.
const TRIES_MAX: u32 = 5;
/// Pause before the second attempt, doubled for each further attempt.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
/// Claims per batch of glances: some milliseconds.
const GLANCES: usize = 512;
/// Longest pause between repeated checks within a time limit: people do not notice half a second.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Time limits and parallelism of checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Time for a claim, including retries.
    pub claim: Duration,
    /// Time for all claims of a pack.
    pub pack: Duration,
    /// Time for all claims checked before a resume.
    pub all: Duration,
    /// Checks in parallel.
    pub parallel: usize,
}

impl Default for Limits {
    /// Ten seconds per claim: enough to hash gigabytes. A minute per pack. Ten minutes per resume, which may
    /// check a day's results. Eight in parallel, which keeps a disk busy.
    fn default() -> Self {
        let [claim, pack, all] = [10, 60, 600].map(Duration::from_secs);
        Self { claim, pack, all, parallel: 8 }
    }
}

/// Checks claims through one probe for each kind.
#[derive(Debug, Clone)]
pub struct Verifier {
    probes: BTreeMap<String, Arc<dyn Probe>>,
    limits: Limits,
    clock: Arc<dyn Clock>,
}

impl Default for Verifier {
    fn default() -> Self {
        Self::new()
    }
}

/// A check of the claim at an index.
type CheckFuture<'a> = Pin<Box<dyn Future<Output = (usize, Finding)> + Send + 'a>>;

/// The purpose of a look at a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Check,
    Pin,
}

impl Verifier {
    /// Creates a verifier with the probes of this crate and the default limits.
    pub fn new() -> Self {
        let bare = Self { probes: BTreeMap::new(), limits: Limits::default(), clock: Arc::new(SystemClock) };
        bare.with_probe(Arc::new(ExistsProbe))
            .with_probe(Arc::new(Sha256Probe::new()))
            .with_probe(Arc::new(ExitProbe))
    }

    /// Adds a probe, or replaces the probe of the same kind.
    #[must_use]
    pub fn with_probe(mut self, probe: Arc<dyn Probe>) -> Self {
        self.probes.insert(probe.kind().name.to_owned(), probe);
        self
    }

    /// Sets the limits.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Sets the clock for `checked_at`.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    /// Checks every claim due on [`Verify`](Occasion::Verify), and returns a copy of the pack with the
    /// verdicts. Claims that are not due are `skipped`.
    ///
    /// An unpinned claim that should have been pinned is `failed`.
    pub async fn verify(&self, pack: &Pack, site: &Site) -> Pack {
        self.verify_on(pack, site, Occasion::Verify).await
    }

    /// As [`verify`](Self::verify), on a given occasion.
    pub async fn verify_on(&self, pack: &Pack, site: &Site, occasion: Occasion) -> Pack {
        self.verify_until(pack, site, occasion, self.deadline_of(&pack.claims)).await
    }

    /// Takes all pins, then checks every claim, as the commit of a step requires.
    pub async fn commit(&self, pack: &Pack, site: &Site) -> Pack {
        let deadline = self.deadline_of(&pack.claims);
        let pinned = self.pin_until(pack, site, deadline).await;
        // Pinned just now: a check would only repeat the read.
        let fresh = |claim: &Claim| claim.pinned && claim.checked_at.is_some();
        let (ready, open): (Vec<_>, Vec<_>) =
            pinned.claims.iter().cloned().enumerate().partition(|(_, claim)| fresh(claim));
        let rest = Pack { at_least: None, claims: open.iter().map(|(_, claim)| claim.clone()).collect() };
        let checked = self.verify_until(&rest, site, Occasion::Commit, deadline).await;
        let places = open.iter().map(|(place, _)| *place);
        let mut claims: Vec<(usize, Claim)> = ready.into_iter().chain(places.zip(checked.claims)).collect();
        claims.sort_by_key(|(place, _)| *place);
        Pack { at_least: pack.at_least, claims: claims.into_iter().map(|(_, claim)| claim).collect() }
    }

    /// Takes all pins and checks nothing: every verdict is `skipped`.
    ///
    /// A failed pin has no value and a reason; later checks of it are never `ok`.
    pub async fn pin(&self, pack: &Pack, site: &Site) -> Pack {
        let mut pinned = self.pin_until(pack, site, self.deadline_of(&pack.claims)).await;
        for claim in &mut pinned.claims {
            claim.verdict = Verdict::Skipped;
        }
        pinned
    }

    /// Checks claims of many packs, each at its own site, within the time for all; returns them in order with
    /// verdicts. The caller selects the due claims. Else as [`verify`](Self::verify).
    pub async fn verify_all(&self, claims: &[(Claim, Site)]) -> Vec<Claim> {
        let deadline = Instant::now() + self.limits.all;
        let mut checked: Vec<Claim> = claims.iter().map(|(claim, _)| claim.clone()).collect();
        let asked: Vec<(&Claim, &Site)> = claims.iter().map(|(claim, site)| (claim, site)).collect();
        for (place, finding) in self.find(&asked, (0..asked.len()).collect(), Purpose::Check, deadline).await
        {
            let claim = &mut checked[place];
            clear(claim);
            self.note(claim, finding);
        }
        checked
    }

    /// Returns whether all claims hold at a [glance](Probe::glance). If not, only a full check can say more.
    ///
    /// A task has many claims, as a thread switch costs more than a glance.
    pub(crate) async fn all_hold_at_a_glance(&self, packs: &Arc<Vec<Pack>>, site: &Site) -> bool {
        if !packs.iter().flat_map(|pack| &pack.claims).all(|claim| trusts_stamp(claim, site)) {
            return false;
        }
        let limit = Instant::now() + self.limits.claim.min(self.limits.all);
        let count = packs.len().div_ceil(self.limits.parallel.max(1)).max(GLANCES);
        let fails = Arc::new(AtomicBool::new(false));
        let tasks = (0..packs.len()).step_by(count).map(|first| {
            let (verifier, site) = (self.clone(), site.clone());
            let (packs, fails) = (Arc::clone(packs), Arc::clone(&fails));
            tokio::task::spawn_blocking(move || {
                let claims = packs.iter().skip(first).take(count).flat_map(|pack| &pack.claims);
                let claims: Vec<&Claim> = claims.collect();
                let holds = |claims: &[&Claim]| {
                    !fails.load(Ordering::Relaxed) && verifier.hold_at_a_glance(claims, &site)
                };
                let all_hold = claims.chunks(GLANCES).all(holds);
                fails.fetch_or(!all_hold, Ordering::Relaxed);
            })
        });
        let looked = tokio::time::timeout_at(limit, try_join_all(tasks)).await;
        let is_in_time = matches!(looked, Ok(Ok(_)));
        // Tasks beyond the limit end soon.
        !fails.fetch_or(!is_in_time, Ordering::Relaxed) && is_in_time
    }

    /// Returns whether these claims hold at a glance. Claims of one kind in a row are one call.
    fn hold_at_a_glance(&self, claims: &[&Claim], site: &Site) -> bool {
        let said = claims.chunk_by(|one, next| one.kind == next.kind).flat_map(|claims| {
            match self.probes.get(&claims[0].kind) {
                Some(probe) => glances(probe.as_ref(), claims, site),
                None => vec![None; claims.len()],
            }
        });
        said.flatten().filter(|finding| finding.verdict == Verdict::Ok).count() == claims.len()
    }

    /// Returns the deadline for all claims of a pack, counted from now: at least the longest time of a single
    /// claim.
    fn deadline_of(&self, claims: &[Claim]) -> Instant {
        let longest = claims.iter().map(|claim| self.time_of(claim)).max().unwrap_or_default();
        Instant::now() + self.limits.pack.max(longest)
    }

    /// Returns the time limit of a claim, including repeated checks.
    fn time_of(&self, claim: &Claim) -> Duration {
        let one = claim.terms.timeout_ms.map_or(self.limits.claim, Duration::from_millis);
        one + Duration::from_millis(claim.terms.within_ms.unwrap_or_default())
    }

    /// Returns the deadline for all checks before a resume, counted from now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.limits.all
    }

    async fn pin_until(&self, pack: &Pack, site: &Site, deadline: Instant) -> Pack {
        let mut pinned = pack.clone();
        for claim in &mut pinned.claims {
            let kind = self.probes.get(&claim.kind).map(|probe| probe.kind());
            claim.live = kind.is_some_and(|kind| kind.is_live);
            (claim.file, claim.stamp) = (None, None);
            claim.host = kind.filter(|kind| (kind.is_local)(claim)).map(|_| site.host().to_owned());
            clear(claim);
        }
        let local: Vec<usize> =
            (0..pack.claims.len()).filter(|place| pinned.claims[*place].host.is_some()).collect();
        let subjects = local.iter().map(|place| pack.claims[*place].subject.clone()).collect();
        let names = other_names(subjects, site, deadline).await;
        for (place, name) in local.into_iter().zip(names) {
            pinned.claims[place].file = name;
        }
        let wanted: Vec<usize> =
            (0..pack.claims.len()).filter(|place| is_open_pin(&pack.claims[*place])).collect();
        let asked = pinned.claims.clone();
        let asked: Vec<(&Claim, &Site)> = asked.iter().map(|claim| (claim, site)).collect();
        for (place, finding) in self.find(&asked, wanted, Purpose::Pin, deadline).await {
            let claim = &mut pinned.claims[place];
            if finding.verdict == Verdict::Ok {
                claim.expect = finding.found.clone();
                claim.stamp.clone_from(&finding.stamp);
            }
            self.note(claim, finding);
        }
        pinned
    }

    async fn verify_until(&self, pack: &Pack, site: &Site, occasion: Occasion, deadline: Instant) -> Pack {
        let mut checked = pack.clone();
        checked.claims.iter_mut().for_each(clear);
        let asked: Vec<(&Claim, &Site)> = pack.claims.iter().map(|claim| (claim, site)).collect();
        let due = (0..asked.len()).filter(|place| pack.claims[*place].is_due(occasion)).collect();
        for (place, finding) in self.find(&asked, due, Purpose::Check, deadline).await {
            self.note(&mut checked.claims[place], finding);
        }
        checked
    }

    fn note(&self, claim: &mut Claim, finding: Finding) {
        claim.verdict = finding.verdict;
        claim.checked_at = Some(self.clock.now());
        if claim.terms.sensitive {
            claim.expect = serde_json::Value::Null;
            // The probe's reason may quote the sensitive value.
            claim.error = finding.why.map(|_| "the reason is hidden, as the claim is sensitive".to_owned());
            return;
        }
        claim.found = finding.found;
        claim.error = finding.why;
    }

    /// Calls the probes for the claims at `places`: cheap checks first, in parallel up to the limit.
    async fn find(
        &self,
        claims: &[(&Claim, &Site)],
        mut places: Vec<usize>,
        aim: Purpose,
        deadline: Instant,
    ) -> Vec<(usize, Finding)> {
        let cost =
            |place: &usize| self.probes.get(&claims[*place].0.kind).map_or(Cost::Recorded, |p| p.kind().cost);
        places.sort_by_key(cost);
        let glanced =
            if aim == Purpose::Check { self.glance(claims, &mut places, deadline).await } else { Vec::new() };
        let mut checks: Vec<CheckFuture<'_>> = Vec::new();
        for place in places {
            let (claim, site) = claims[place];
            let check = self.look(claim, aim, site, deadline);
            checks.push(Box::pin(async move { (place, check.await) }));
        }
        let checked = stream::iter(checks).buffer_unordered(self.limits.parallel.max(1));
        stream::iter(glanced).chain(checked).collect().await
    }

    /// Glances at the claims that trust a stamp, in batches, as a thread switch costs more than a glance.
    /// Removes the answered claims from `places`.
    async fn glance(
        &self,
        claims: &[(&Claim, &Site)],
        places: &mut Vec<usize>,
        deadline: Instant,
    ) -> Vec<(usize, Finding)> {
        let trusts = |place: &usize| trusts_stamp(claims[*place].0, claims[*place].1);
        let wanted: Vec<usize> = places.iter().copied().filter(trusts).collect();
        let mut said: BTreeMap<usize, Finding> = BTreeMap::new();
        let mut under_way = FuturesUnordered::new();
        for chunk in wanted.chunks(GLANCES) {
            if under_way.len() >= self.limits.parallel.max(1) {
                said.extend(under_way.next().await.into_iter().flatten());
            }
            let asked = chunk.iter().filter_map(|place| {
                let (claim, site) = claims[*place];
                let probe = Arc::clone(self.probes.get(&claim.kind)?);
                Some(QuickCheck { place: *place, probe, claim: claim.clone(), site: site.clone() })
            });
            under_way.push(check_quick(asked.collect(), deadline.min(Instant::now() + self.limits.claim)));
        }
        while let Some(more) = under_way.next().await {
            said.extend(more);
        }
        places.retain(|place| !said.contains_key(place));
        said.into_iter().collect()
    }

    /// Checks a claim, and repeats the check while this may help and time remains.
    async fn look(&self, claim: &Claim, aim: Purpose, site: &Site, deadline: Instant) -> Finding {
        if aim == Purpose::Check && is_open_pin(claim) {
            return Finding::failed("no value was pinned at commit");
        }
        if aim == Purpose::Pin && claim.terms.not {
            return Finding::failed("`not` conflicts with a pinned value: the claim could never pass");
        }
        if let (Purpose::Check, Some(host)) = (aim, site.is_foreign_to(claim)) {
            return Finding::unknown(format!(
                "the claim was recorded on `{host}`, and this is `{}`",
                site.host()
            ));
        }
        let Some(probe) = self.probes.get(&claim.kind) else {
            return Finding::unknown(format!("no probe for claims of kind `{}`", claim.kind));
        };
        let begun = Instant::now();
        if begun >= deadline {
            return Finding::unknown("the time for all checks ended before this check");
        }
        let within = Duration::from_millis(claim.terms.within_ms.unwrap_or_default());
        let once = self.time_of(claim) - within;
        let patience = begun + within;
        let question = Question { probe: probe.as_ref(), claim, aim, site };
        let mut pause = PAUSE_FIRST;
        loop {
            let finding = check_with_retries(question, once, deadline).await;
            let finding = if claim.terms.not { finding.reversed() } else { finding };
            if finding.verdict == Verdict::Ok || Instant::now() + pause >= patience.min(deadline) {
                return finding;
            }
            tokio::time::sleep(pause).await;
            pause = PAUSE_MAX.min(pause * 2);
        }
    }
}

/// A claim that its probe may answer without a full check.
struct QuickCheck {
    place: usize,
    probe: Arc<dyn Probe>,
    claim: Claim,
    site: Site,
}

/// A question to a probe.
#[derive(Clone, Copy)]
struct Question<'a> {
    probe: &'a dyn Probe,
    claim: &'a Claim,
    aim: Purpose,
    site: &'a Site,
}

/// Glances at claims on a blocking thread, and returns the findings by place. Claims beyond the limit get no
/// finding here; the separate check reports which one hangs.
fn check_quick(asked: Vec<QuickCheck>, limit: Instant) -> impl Future<Output = Vec<(usize, Finding)>> {
    let work = tokio::task::spawn_blocking(move || {
        let glance = |QuickCheck { place, probe, claim, site }: &QuickCheck| {
            Some((*place, glances(probe.as_ref(), &[claim], site).pop().flatten()?))
        };
        let said: Vec<_> = asked.iter().filter_map(glance).collect();
        // Return the batch, so that the allocating thread frees the memory.
        (said, asked)
    });
    async move {
        match tokio::time::timeout_at(limit, work).await {
            Ok(Ok((said, _asked))) => said,
            Ok(Err(_)) | Err(_) => Vec::new(),
        }
    }
}

/// Glances at claims of one kind. The probe may be foreign code: a panic becomes a finding.
fn glances(probe: &dyn Probe, claims: &[&Claim], site: &Site) -> Vec<Option<Finding>> {
    let said = catch_unwind(AssertUnwindSafe(|| probe.glance(claims, site)));
    let mut said = said.unwrap_or_else(|_| claims.iter().map(|claim| Some(panicked(claim))).collect());
    said.resize(claims.len(), None);
    said
}

/// Makes a check, and retries temporary failures within the limit `once` of the claim and the `deadline` of
/// all.
async fn check_with_retries(question: Question<'_>, once: Duration, deadline: Instant) -> Finding {
    let begun = Instant::now();
    let mut last = None;
    let tries = async {
        let mut pause = PAUSE_FIRST;
        for _ in 1..TRIES_MAX {
            let finding = ask(question).await;
            if !finding.may_change {
                return finding;
            }
            last = Some(finding);
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        ask(question).await
    };
    let in_time = tokio::time::timeout_at(deadline.min(begun + once), tries).await;
    in_time.unwrap_or_else(|_| last.unwrap_or_else(|| no_answer(once, deadline - begun)))
}

/// Returns the finding for a probe without an answer within its time, or within the rest of the time for all.
fn no_answer(once: Duration, left: Duration) -> Finding {
    if once <= left {
        return Finding::unknown(format!("no result within {once:?}"));
    }
    let left = Duration::from_millis(left.as_millis().try_into().unwrap_or(u64::MAX));
    Finding::unknown(format!("no result within {left:?}, the end of the time for all checks"))
}

/// Calls a probe, which may be foreign code: a panic becomes a finding.
async fn ask(Question { probe, claim, aim, site }: Question<'_>) -> Finding {
    let asked = async {
        match aim {
            Purpose::Check => probe.check(claim, site).await,
            Purpose::Pin => probe.pin(claim, site).await.map(taken),
        }
        .unwrap_or_else(|finding| finding)
    };
    AssertUnwindSafe(asked).catch_unwind().await.unwrap_or_else(|_| panicked(claim))
}

/// Refuses a null pin, as later checks could not detect a change.
fn taken(finding: Finding) -> Finding {
    match (finding.verdict, finding.found.is_null()) {
        (Verdict::Ok, true) => Finding::failed("found null, which cannot be pinned: add an expected value"),
        _ => finding,
    }
}

fn panicked(claim: &Claim) -> Finding {
    Finding::unknown(format!("the probe for claims of kind `{}` panicked", claim.kind))
}

/// Returns whether a claim holds while its stamp is unchanged.
fn trusts_stamp(claim: &Claim, site: &Site) -> bool {
    claim.terms.fast && claim.stamp.is_some() && !claim.terms.not && site.is_foreign_to(claim).is_none()
}

/// Returns whether a claim is still to be pinned.
fn is_open_pin(claim: &Claim) -> bool {
    claim.pinned && claim.expect.is_null()
}

/// Clears the results of an earlier check, or of the caller.
fn clear(claim: &mut Claim) {
    claim.verdict = Verdict::Skipped;
    (claim.found, claim.error, claim.checked_at) = (serde_json::Value::Null, None, None);
}
