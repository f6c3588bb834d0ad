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

use crate::lock;

/// The fastest regular level; with a reference, higher levels gain too little for their cost.
const LEVEL: i32 = 1;
/// zstd's smallest window, and the largest that a 64-bit decoder accepts by default.
const WINDOW_LOG: std::ops::RangeInclusive<u32> = 10..=27;
/// Smallest and largest hash table, as the logarithm of its four-byte entries. With a table smaller than the
/// reference, level 1 finds no matches in references above 300 KB.
const HASH_LOG: std::ops::RangeInclusive<u32> = 12..=24;
/// Cached pairs of contexts: usually the number of concurrently appending threads.
const IDLE_MAX: usize = 4;
/// A larger context is freed after use; a hash table for states of a MiB fits.
const CONTEXT_BYTES_MAX: usize = 16 << 20;

/// A dictionary for small texts of the same kind, prepared once.
#[expect(missing_debug_implementations, reason = "zstd's contexts have none")]
pub struct Dictionary {
    compress: CDict<'static>,
    decompress: DDict<'static>,
}

impl Dictionary {
    /// Prepares the bytes for both directions.
    pub fn new(bytes: &'static [u8]) -> Self {
        Self { compress: CDict::create(bytes, LEVEL), decompress: DDict::create(bytes) }
    }
}

/// A cache of contexts.
#[derive(Default)]
pub struct Compressor {
    idle: Mutex<Vec<Contexts>>,
}

/// A compression and a decompression context.
#[expect(missing_debug_implementations, reason = "zstd's contexts have none")]
pub struct Contexts {
    compress: CCtx<'static>,
    decompress: DCtx<'static>,
}

/// A borrowed pair of contexts, returned on drop.
#[expect(missing_debug_implementations, reason = "zstd's contexts have none")]
pub struct ContextGuard<'a> {
    from: &'a Compressor,
    contexts: Option<Contexts>,
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compressor").field("idle", &lock(&self.idle).len()).finish()
    }
}

impl Compressor {
    /// Lends a pair of contexts.
    pub fn contexts(&self) -> ContextGuard<'_> {
        let contexts = lock(&self.idle).pop();
        let contexts =
            contexts.unwrap_or_else(|| Contexts { compress: CCtx::create(), decompress: DCtx::create() });
        ContextGuard { from: self, contexts: Some(contexts) }
    }
}

impl Deref for ContextGuard<'_> {
    type Target = Contexts;

    fn deref(&self) -> &Contexts {
        self.contexts.as_ref().expect("the pointer is valid until drop")
    }
}

impl DerefMut for ContextGuard<'_> {
    fn deref_mut(&mut self) -> &mut Contexts {
        self.contexts.as_mut().expect("the pointer is valid until drop")
    }
}

impl Drop for ContextGuard<'_> {
    fn drop(&mut self) {
        let Some(contexts) = self.contexts.take() else { return };
        let bytes = contexts.compress.sizeof() + contexts.decompress.sizeof();
        let mut idle = lock(&self.from.idle);
        if idle.len() < IDLE_MAX && bytes <= CONTEXT_BYTES_MAX {
            idle.push(contexts);
        }
    }
}

/// Borrows a cached context for a single call, so that it may refer to short-lived bytes.
macro_rules! borrowed {
    ($context:expr, $kind:ident) => {{
        #[expect(unsafe_code, reason = "the pool keeps contexts beyond any lifetime")]
        // SAFETY: only the lifetime parameter changes, which is not part of the layout. `reset` removes every
        // reference with the shorter lifetime before the borrowing function returns, on each path.
        let context = unsafe { std::mem::transmute::<&mut $kind<'static>, &mut $kind<'_>>($context) };
        context
    }};
}

impl Contexts {
    /// Compresses `bytes`, which probably share parts with `reference`, and appends the result to `out`.
    /// Returns `None` if zstd fails; `out` is then unchanged.
    pub fn compress(&mut self, reference: &[u8], bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let context = borrowed!(&mut self.compress, CCtx);
        let result = refer(context, reference, bytes).and_then(|()| append(context, bytes, out));
        self.reset_compression();
        result.ok()
    }

    /// As [`compress`](Self::compress), for small `bytes` of the kind covered by `dictionary`.
    pub fn compress_with(
        &mut self,
        dictionary: &'static Dictionary,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<()> {
        // The owner of the bytes knows their dictionary.
        let set = self.compress.set_parameter(CParameter::DictIdFlag(false));
        let set = set.and_then(|_| self.compress.ref_cdict(&dictionary.compress));
        let result = set.and_then(|_| append(&mut self.compress, bytes, out));
        self.reset_compression();
        result.ok()
    }

    /// Decompresses `encoded` into `out`, replacing its content. The result must have `bytes` bytes.
    ///
    /// # Errors
    /// The defect of `encoded` as text. The output never exceeds `bytes`.
    pub fn decompress(
        &mut self,
        reference: &[u8],
        encoded: &[u8],
        bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        make_room(encoded, bytes, out)?;
        let context = borrowed!(&mut self.decompress, DCtx);
        let set = if reference.is_empty() { Ok(0) } else { context.ref_prefix(reference) };
        let result = set.and_then(|_| context.decompress(out, encoded));
        self.reset_decompression();
        made(result, bytes)
    }

    /// As [`decompress`](Self::decompress), for data packed with `dictionary`.
    ///
    /// # Errors
    /// The defect of `encoded` as text. The output never exceeds `bytes`.
    pub fn decompress_with(
        &mut self,
        dictionary: &'static Dictionary,
        encoded: &[u8],
        bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        make_room(encoded, bytes, out)?;
        let result = self
            .decompress
            .ref_ddict(&dictionary.decompress)
            .and_then(|_| self.decompress.decompress(out, encoded));
        self.reset_decompression();
        made(result, bytes)
    }

    /// Removes references of the last call, which may be invalid by now.
    fn reset_compression(&mut self) {
        if self.compress.reset(ResetDirective::SessionAndParameters).is_err() {
            self.compress = CCtx::create();
        }
    }

    /// Removes references of the last call, which may be invalid by now.
    fn reset_decompression(&mut self) {
        if self.decompress.reset(ResetDirective::SessionAndParameters).is_err() {
            self.decompress = DCtx::create();
        }
    }
}

/// Returns the decompressed size of `encoded`.
///
/// # Errors
/// The size is missing, or exceeds `bytes_max`.
pub fn size_of(encoded: &[u8], bytes_max: usize) -> Result<usize, String> {
    let found = get_frame_content_size(encoded).ok().flatten();
    let found = found.ok_or("the compressed data has no content size")?;
    let size = usize::try_from(found).ok().filter(|size| *size <= bytes_max);
    size.ok_or_else(|| {
        format!("the compressed data has {found} bytes of content, the maximum is {bytes_max}")
    })
}

/// Reserves space in `out` for the `bytes` of `encoded`.
fn make_room(encoded: &[u8], bytes: usize, out: &mut Vec<u8>) -> Result<(), String> {
    let found = size_of(encoded, bytes)?;
    if found != bytes {
        return Err(format!("the compressed data has {found} bytes of content, expected {bytes}"));
    }
    out.clear();
    out.try_reserve_exact(bytes).map_err(|_| format!("cannot allocate {bytes} bytes"))
}

fn made(result: Result<usize, ErrorCode>, bytes: usize) -> Result<(), String> {
    match result {
        Ok(made) if made == bytes => Ok(()),
        Ok(made) => Err(format!("the compressed data has {made} bytes of content, expected {bytes}")),
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
    fn a_small_change_of_a_large_state_is_a_small_delta() {
        let compressor = Compressor::default();
        for bytes in [1_000, 300_000, 1_000_000, 4_000_000] {
            let before = noise(bytes, 7);
            let mut after = before.clone();
            after[bytes / 3] ^= 1;
            after.insert(bytes / 2, b'!');

            let mut encoded = Vec::new();
            compressor.contexts().compress(&before, &after, &mut encoded).unwrap();

            assert!(encoded.len() < 600, "{bytes} bytes cost {}", encoded.len());
            let mut found = Vec::new();
            compressor.contexts().decompress(&before, &encoded, after.len(), &mut found).unwrap();
            assert!(found == after, "{bytes} bytes come back");
        }
    }

    #[test]
    fn what_says_that_it_is_larger_than_allowed_is_not_unpacked() {
        let compressor = Compressor::default();
        let mut encoded = Vec::new();
        compressor.contexts().compress(b"", &vec![0; 10 << 20], &mut encoded).unwrap();
        let mut out = Vec::new();

        let error = compressor.contexts().decompress(b"", &encoded, 1_000, &mut out).unwrap_err();

        assert_eq!(error, "the compressed data has 10485760 bytes of content, the maximum is 1000");
        assert_eq!(out.capacity(), 0);
    }

    #[test]
    fn contexts_that_grew_large_are_not_kept() {
        let compressor = Compressor::default();
        drop((compressor.contexts(), compressor.contexts()));
        assert_eq!(lock(&compressor.idle).len(), 2);

        let large = noise(16 << 20, 1);
        compressor.contexts().compress(&large, &large, &mut Vec::new()).unwrap();

        assert_eq!(lock(&compressor.idle).len(), 1);
    }
}
