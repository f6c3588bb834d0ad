//! Cache of the newest body of each scope, as delta base for the next body.
//!
//! The cache is optional: without an entry, the next body of a scope costs a full frame. The cache is also
//! not trusted. An append checks in its transaction that the record is still stored as expected, and a read
//! checks its frame.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;

use waypost::id::{Digest, RunId, ScopePath};
use waypost::record::Bytes;

use crate::compression::Compressor;
use crate::lock;

/// Most bytes of cached bodies: two of the largest, or a hundred runs with states of a MiB.
const BYTES_MAX: usize = 128 << 20;
/// Most cached scopes, because small bodies cost more than their bytes.
const SCOPES_MAX: usize = 4096;
/// Most frames of a body; limits the cost of a read, and the loss through a damaged frame.
pub const CHAIN_FRAMES_MAX: u32 = 512;
/// A full frame is due when the last full frame and the later deltas exceed this multiple of a new full
/// frame, estimated from the last compression ratio. A growing state never reaches the limit: its frames
/// together are about as large as a full frame, and a full frame at each doubling would double the cost. A
/// state whose parts are overwritten repeatedly reaches the limit before reads become much more expensive.
const CHAIN_PER_FULL: u64 = 5;
/// A full frame is due when decoding moves this multiple of the body size.
const MOVED_PER_BODY: u64 = 64;
/// Full frames after an unprofitable delta before the next delta is tried.
const FULL_FRAMES_AFTER_WASTE: u8 = 3;

/// Frame data shared by reads and writes of a store.
#[derive(Debug, Default)]
pub struct DeltaCache {
    /// The zstd contexts.
    pub compressor: Compressor,
    bodies: Mutex<CachedBodies>,
    /// The last body read, for sequential readers.
    last: Mutex<Option<(RunId, ScopePath, CachedBody)>>,
}

#[derive(Default)]
struct CachedBodies {
    by_scope: HashMap<(RunId, ScopePath), CachedBody>,
    bytes: usize,
}

/// A cached body and its frame.
#[derive(Debug, Clone)]
pub struct CachedBody {
    /// The seq of the record.
    pub seq: u64,
    /// Digest of the record.
    pub record: Digest,
    /// Check of the frame.
    pub check: [u8; 8],
    /// The bytes.
    pub body: Bytes,
    /// The end of the position in the bytes.
    pub position_bytes: usize,
    /// The cost of decoding the body.
    pub chain: CachedChain,
}

/// The cost of decoding a body from its frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedChain {
    full_bytes: u64,
    /// Size of the body of the full frame.
    full_body_bytes: u64,
    delta_bytes: u64,
    moved: u64,
    frames: u32,
    /// Number of full frames before a delta is tried again.
    delta_pause: u8,
}

impl CachedChain {
    /// Returns the chain of a full frame, given the size of frame and body.
    pub fn of_full(bytes: usize, body_bytes: usize) -> Self {
        let (full_bytes, full_body_bytes) = (bytes as u64, body_bytes as u64);
        Self { full_bytes, full_body_bytes, delta_bytes: 0, moved: 0, frames: 1, delta_pause: 0 }
    }

    /// Returns the chain with another delta.
    pub fn with(self, bytes: usize, moved: u64) -> Self {
        Self {
            delta_bytes: self.delta_bytes + bytes as u64,
            moved: self.moved + moved,
            frames: self.frames + 1,
            ..self
        }
    }

    /// Returns whether to try a delta next.
    pub fn may_grow(&self) -> bool {
        self.delta_pause == 0 && self.frames < CHAIN_FRAMES_MAX
    }

    /// Returns whether a delta of this size saves enough to depend on another frame.
    pub fn is_worth(&self, delta_bytes: usize) -> bool {
        delta_bytes as u64 <= self.full_bytes / 2
    }

    /// Returns whether a full frame should replace the last delta of this chain, for a body of this size.
    pub fn is_due(&self, body_bytes: usize) -> bool {
        // Products cannot overflow: bodies have at most 2^27 bytes, and a chain has few of them.
        (self.full_bytes + self.delta_bytes) * self.full_body_bytes
            > CHAIN_PER_FULL * self.full_bytes * body_bytes as u64
            || self.moved > MOVED_PER_BODY * body_bytes as u64
    }

    /// Returns the chain of a full frame after this chain; `wasted` if an unprofitable delta was tried.
    pub fn restarted(&self, bytes: usize, body_bytes: usize, wasted: bool) -> Self {
        let delta_pause = if wasted { FULL_FRAMES_AFTER_WASTE } else { self.delta_pause.saturating_sub(1) };
        Self { delta_pause, ..Self::of_full(bytes, body_bytes) }
    }
}

impl DeltaCache {
    /// Returns the cached body of a scope.
    pub fn newest(&self, run: &RunId, scope: &ScopePath) -> Option<CachedBody> {
        lock(&self.bodies).by_scope.get(&(run.clone(), scope.clone())).cloned()
    }

    /// Caches the body that an append has written.
    pub fn insert_written(&self, run: &RunId, scope: &ScopePath, body: CachedBody) {
        lock(&self.bodies).put(run, scope, body);
    }

    /// Returns the cached bodies of a scope, as starting points for decoding another body.
    pub fn cached(&self, run: &RunId, scope: &ScopePath) -> Vec<CachedBody> {
        let last = lock(&self.last).clone().filter(|(of, path, _)| of == run && path == scope);
        last.map(|(_, _, body)| body).into_iter().chain(self.newest(run, scope)).collect()
    }

    /// Caches a body that was read.
    pub fn insert_read(&self, run: &RunId, scope: &ScopePath, body: CachedBody) {
        *lock(&self.last) = Some((run.clone(), scope.clone(), body.clone()));
        let mut bodies = lock(&self.bodies);
        let cached = bodies.by_scope.get(&(run.clone(), scope.clone()));
        if cached.is_none_or(|cached| cached.seq < body.seq) {
            bodies.put(run, scope, body);
        }
    }

    /// Removes a scope that has ended.
    pub fn remove_scope(&self, run: &RunId, scope: &ScopePath) {
        lock(&self.bodies).remove(&(run.clone(), scope.clone()));
    }

    /// Removes a run that was released.
    pub fn remove_run(&self, run: &RunId) {
        let mut bodies = lock(&self.bodies);
        bodies.by_scope.retain(|(of, _), _| of != run);
        lock(&self.last).take_if(|(of, ..)| of == run);
        bodies.bytes = bodies.by_scope.values().map(|body| body.body.capacity()).sum();
    }
}

impl CachedBodies {
    fn put(&mut self, run: &RunId, scope: &ScopePath, body: CachedBody) {
        let key = (run.clone(), scope.clone());
        self.remove(&key);
        if body.body.capacity() > BYTES_MAX {
            return;
        }
        while self.by_scope.len() >= SCOPES_MAX || self.bytes + body.body.capacity() > BYTES_MAX {
            // An arbitrary entry: with more active scopes than fit, the least recently used scope is the
            // next to be needed, and LRU eviction would always miss.
            let Some(any) = self.by_scope.keys().next().cloned() else { break };
            self.remove(&any);
        }
        self.bytes += body.body.capacity();
        self.by_scope.insert(key, body);
    }

    fn remove(&mut self, key: &(RunId, ScopePath)) {
        if let Some(body) = self.by_scope.remove(key) {
            self.bytes -= body.body.capacity();
        }
    }
}

impl fmt::Debug for CachedBodies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedBodies")
            .field("scopes", &self.by_scope.len())
            .field("bytes", &self.bytes)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn body(seq: u64, bytes: usize) -> CachedBody {
        let (record, body) = (Digest::of(b"a record"), Arc::new(vec![0; bytes]));
        CachedBody {
            seq,
            record,
            check: [0; 8],
            body,
            position_bytes: 0,
            chain: CachedChain::of_full(bytes, bytes),
        }
    }

    fn path(item: usize) -> ScopePath {
        ScopePath::new(&format!("each:{item}")).unwrap()
    }

    #[test]
    fn what_is_kept_is_bounded_by_bytes_and_by_count() {
        let (frames, run) = (DeltaCache::default(), RunId::new("r-1").unwrap());

        for item in 0..SCOPES_MAX + 10 {
            frames.insert_written(&run, &path(item), body(1, 10));
        }
        assert_eq!(lock(&frames.bodies).by_scope.len(), SCOPES_MAX);
        for item in 0..40 {
            frames.insert_written(&run, &path(item), body(2, BYTES_MAX / 10));
        }

        let bodies = lock(&frames.bodies);
        let bytes: usize = bodies.by_scope.values().map(|body| body.body.capacity()).sum();
        assert!(bytes <= BYTES_MAX && bytes == bodies.bytes, "{bytes}");
        assert!(bodies.by_scope.values().filter(|body| body.seq == 2).count() >= 9, "it is used to the full");
    }

    #[test]
    fn what_is_too_large_is_not_kept_nor_what_was_known_before() {
        let (frames, run) = (DeltaCache::default(), RunId::new("r-1").unwrap());
        frames.insert_written(&run, &path(1), body(1, 10));

        frames.insert_written(&run, &path(1), body(2, BYTES_MAX + 1));

        assert!(frames.newest(&run, &path(1)).is_none());
        assert_eq!(lock(&frames.bodies).bytes, 0);
    }

    #[test]
    fn a_read_does_not_hide_what_was_written_since() {
        let (frames, run) = (DeltaCache::default(), RunId::new("r-1").unwrap());
        frames.insert_written(&run, &path(1), body(7, 10));

        frames.insert_read(&run, &path(1), body(3, 10));

        assert_eq!(frames.newest(&run, &path(1)).unwrap().seq, 7);
        let cached: Vec<u64> = frames.cached(&run, &path(1)).iter().map(|body| body.seq).collect();
        assert_eq!(cached, [3, 7]);
        frames.remove_run(&run);
        assert!(frames.cached(&run, &path(1)).is_empty());
    }

    #[test]
    fn a_delta_that_does_not_pay_is_not_tried_again_at_once() {
        let full = CachedChain::of_full(1_000, 1_000);
        assert!(full.may_grow() && full.is_worth(500) && !full.is_worth(501));

        let mut chain = full.restarted(1_000, 1_000, true);
        for _ in 0..FULL_FRAMES_AFTER_WASTE {
            assert!(!chain.may_grow());
            chain = chain.restarted(1_000, 1_000, false);
        }

        assert!(chain.may_grow());
    }

    #[test]
    fn a_chain_ends_by_deltas_moved_bytes_and_length() {
        let full = CachedChain::of_full(1_000, 1_000);
        assert!(!full.with(4_000, 0).is_due(1_000) && full.with(4_001, 0).is_due(1_000));
        assert!(!full.with(9_000, 0).is_due(10_000), "it has grown, and so would a full frame");
        assert!(!full.with(1, 64_000).is_due(1_000) && full.with(1, 64_001).is_due(1_000));

        let long = (1..CHAIN_FRAMES_MAX).fold(full, |chain, _| {
            assert!(chain.may_grow());
            chain.with(1, 1)
        });

        assert!(!long.may_grow());
    }
}
