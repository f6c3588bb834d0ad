//! zstd with cached contexts: creating a context costs more than compressing a small state.
//!
//! The module knows only bytes and references; `frame` knows their meaning.

use std::fmt;
use std::io::Cursor;
use std::ops::{Deref, DerefMut};
use std::sync::Mutex;

use zstd_safe::{
    CCtx, CDict, CParameter, DCtx, DDict, ErrorCode, ResetDirective, compress_bound, get_error_name,
    get_frame_content_size,
};

use crate::commit::lock;

/// The fastest regular level; with a reference, higher levels gain too little for their cost.
const LEVEL: i32 = 1;
/// zstd's smallest window, and the largest that a 64-bit decoder accepts by default.
const WINDOW_LOG: std::ops::RangeInclusive<u32> = 10..=27;
/// Smallest and largest hash table, as the logarithm of its four-byte entries. With a table smaller than the
/// reference, level 1 finds no matches in references above 300 KB.
const HASH_LOG: std::ops::RangeInclusive<u32> = 12..=24;
/// Cached pairs of contexts: usually the number of concurrently appending threads.
const KEPT_MAX: usize = 4;
/// A larger context is freed after use; a hash table for states of a MiB fits.
const CONTEXT_BYTES_MAX: usize = 16 << 20;

/// A dictionary for small texts of the same kind, prepared once.
pub(crate) struct Dictionary {
    pack: CDict<'static>,
    unpack: DDict<'static>,
}

impl Dictionary {
    pub(crate) fn new(bytes: &'static [u8]) -> Self {
        Self { pack: CDict::create(bytes, LEVEL), unpack: DDict::create(bytes) }
    }
}

/// A cache of contexts.
#[derive(Default)]
pub(crate) struct Squeezer {
    kept: Mutex<Vec<Contexts>>,
}

/// A compression and a decompression context.
pub(crate) struct Contexts {
    pack: CCtx<'static>,
    unpack: DCtx<'static>,
}

/// A borrowed pair of contexts, returned on drop.
pub(crate) struct Lent<'a> {
    from: &'a Squeezer,
    contexts: Option<Contexts>,
}

impl fmt::Debug for Squeezer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Squeezer").field("kept", &lock(&self.kept).len()).finish()
    }
}

impl Squeezer {
    /// Lends a pair of contexts.
    pub(crate) fn lend(&self) -> Lent<'_> {
        let contexts = lock(&self.kept).pop();
        let contexts = contexts.unwrap_or_else(|| Contexts { pack: CCtx::create(), unpack: DCtx::create() });
        Lent { from: self, contexts: Some(contexts) }
    }
}

impl Deref for Lent<'_> {
    type Target = Contexts;

    fn deref(&self) -> &Contexts {
        self.contexts.as_ref().expect("it is there until it is dropped")
    }
}

impl DerefMut for Lent<'_> {
    fn deref_mut(&mut self) -> &mut Contexts {
        self.contexts.as_mut().expect("it is there until it is dropped")
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let Some(contexts) = self.contexts.take() else { return };
        let bytes = contexts.pack.sizeof() + contexts.unpack.sizeof();
        let mut kept = lock(&self.from.kept);
        if kept.len() < KEPT_MAX && bytes <= CONTEXT_BYTES_MAX {
            kept.push(contexts);
        }
    }
}

/// Borrows a cached context for a single call, so that it may refer to short-lived bytes.
macro_rules! borrowed {
    ($context:expr, $kind:ident) => {{
        #[expect(unsafe_code, reason = "a context that is kept cannot name the life of a reference")]
        // SAFETY: only the lifetime parameter changes, which is not part of the layout. `reset` removes every
        // reference with the shorter lifetime before the borrowing function returns, on each path.
        let context = unsafe { std::mem::transmute::<&mut $kind<'static>, &mut $kind<'_>>($context) };
        context
    }};
}

impl Contexts {
    /// Compresses `bytes`, which probably share parts with `reference`, and appends the result to `out`.
    /// Returns `None` if zstd fails; `out` is then unchanged.
    pub(crate) fn pack(&mut self, reference: &[u8], bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let context = borrowed!(&mut self.pack, CCtx);
        let result = refer(context, reference, bytes).and_then(|()| append(context, bytes, out));
        self.forget_packing();
        result.ok()
    }

    /// As [`pack`](Self::pack), for small `bytes` of the kind covered by `dictionary`.
    pub(crate) fn pack_with(
        &mut self,
        dictionary: &'static Dictionary,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<()> {
        // The owner of the bytes knows their dictionary.
        let set = self.pack.set_parameter(CParameter::DictIdFlag(false));
        let set = set.and_then(|_| self.pack.ref_cdict(&dictionary.pack));
        let result = set.and_then(|_| append(&mut self.pack, bytes, out));
        self.forget_packing();
        result.ok()
    }

    /// Decompresses `packed` into `out`, replacing its content. The result must have `bytes` bytes.
    ///
    /// # Errors
    /// The defect of `packed` as text. The output never exceeds `bytes`.
    pub(crate) fn unpack(
        &mut self,
        reference: &[u8],
        packed: &[u8],
        bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        make_room(packed, bytes, out)?;
        let context = borrowed!(&mut self.unpack, DCtx);
        let set = if reference.is_empty() { Ok(0) } else { context.ref_prefix(reference) };
        let result = set.and_then(|_| context.decompress(out, packed));
        self.forget_unpacking();
        made(result, bytes)
    }

    /// As [`unpack`](Self::unpack), for data packed with `dictionary`.
    ///
    /// # Errors
    /// The defect of `packed` as text. The output never exceeds `bytes`.
    pub(crate) fn unpack_with(
        &mut self,
        dictionary: &'static Dictionary,
        packed: &[u8],
        bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        make_room(packed, bytes, out)?;
        let result =
            self.unpack.ref_ddict(&dictionary.unpack).and_then(|_| self.unpack.decompress(out, packed));
        self.forget_unpacking();
        made(result, bytes)
    }

    /// Removes references of the last call, which may be invalid by now.
    fn forget_packing(&mut self) {
        if self.pack.reset(ResetDirective::SessionAndParameters).is_err() {
            self.pack = CCtx::create();
        }
    }

    /// Removes references of the last call, which may be invalid by now.
    fn forget_unpacking(&mut self) {
        if self.unpack.reset(ResetDirective::SessionAndParameters).is_err() {
            self.unpack = DCtx::create();
        }
    }
}

/// Returns the decompressed size of `packed`.
///
/// # Errors
/// The size is missing, or exceeds `bytes_max`.
pub(crate) fn size_of(packed: &[u8], bytes_max: usize) -> Result<usize, String> {
    let found = get_frame_content_size(packed).ok().flatten();
    let found = found.ok_or("it does not tell how long it is")?;
    let size = usize::try_from(found).ok().filter(|size| *size <= bytes_max);
    size.ok_or_else(|| format!("it gives {found} bytes, {bytes_max} are allowed"))
}

/// Reserves space in `out` for the `bytes` of `packed`.
fn make_room(packed: &[u8], bytes: usize, out: &mut Vec<u8>) -> Result<(), String> {
    let found = size_of(packed, bytes)?;
    if found != bytes {
        return Err(format!("it gives {found} bytes, {bytes} were to be there"));
    }
    out.clear();
    out.try_reserve_exact(bytes).map_err(|_| format!("there is no memory for its {bytes} bytes"))
}

fn made(result: Result<usize, ErrorCode>, bytes: usize) -> Result<(), String> {
    match result {
        Ok(made) if made == bytes => Ok(()),
        Ok(made) => Err(format!("it gave {made} bytes, {bytes} were to be there")),
        Err(code) => Err(get_error_name(code).to_owned()),
    }
}

/// Prepares a context for `bytes` that probably share parts with `reference`.
fn refer<'a>(context: &mut CCtx<'a>, reference: &'a [u8], bytes: &[u8]) -> Result<(), ErrorCode> {
    context.set_parameter(CParameter::CompressionLevel(LEVEL))?;
    if !reference.is_empty() {
        let log = log_of(bytes.len() + reference.len());
        context.set_parameter(CParameter::WindowLog(log.clamp(*WINDOW_LOG.start(), *WINDOW_LOG.end())))?;
        context.set_parameter(CParameter::HashLog(log.clamp(*HASH_LOG.start(), *HASH_LOG.end())))?;
        context.ref_prefix(reference)?;
    }
    Ok(())
}

/// Compresses `bytes` and appends the result to `out`.
fn append(context: &mut CCtx<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), ErrorCode> {
    let begin = out.len();
    out.reserve(compress_bound(bytes.len()));
    let mut behind = Cursor::new(out);
    behind.set_position(begin as u64);
    context.compress2(&mut behind, bytes).map(drop)
}

/// Returns the logarithm of the smallest power of two that is at least `count`.
fn log_of(count: usize) -> u32 {
    usize::BITS - count.saturating_sub(1).leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(count: usize, mut state: u64) -> Vec<u8> {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn a_large_state_with_a_small_change_costs_little_whatever_its_size() {
        let squeezer = Squeezer::default();
        for bytes in [1_000, 300_000, 1_000_000, 4_000_000] {
            let before = noise(bytes, 7);
            let mut after = before.clone();
            after[bytes / 3] ^= 1;
            after.insert(bytes / 2, b'!');

            let mut packed = Vec::new();
            squeezer.lend().pack(&before, &after, &mut packed).unwrap();

            assert!(packed.len() < 600, "{bytes} bytes cost {}", packed.len());
            let mut found = Vec::new();
            squeezer.lend().unpack(&before, &packed, after.len(), &mut found).unwrap();
            assert!(found == after, "{bytes} bytes come back");
        }
    }

    #[test]
    fn what_says_that_it_is_larger_than_allowed_is_not_unpacked() {
        let squeezer = Squeezer::default();
        let mut packed = Vec::new();
        squeezer.lend().pack(b"", &vec![0; 10 << 20], &mut packed).unwrap();
        let mut out = Vec::new();

        let error = squeezer.lend().unpack(b"", &packed, 1_000, &mut out).unwrap_err();

        assert_eq!(error, "it gives 10485760 bytes, 1000 are allowed");
        assert_eq!(out.capacity(), 0);
    }

    #[test]
    fn contexts_that_grew_large_are_not_kept() {
        let squeezer = Squeezer::default();
        drop((squeezer.lend(), squeezer.lend()));
        assert_eq!(lock(&squeezer.kept).len(), 2);

        let large = noise(16 << 20, 1);
        squeezer.lend().pack(&large, &large, &mut Vec::new()).unwrap();

        assert_eq!(lock(&squeezer.kept).len(), 1);
    }
}
