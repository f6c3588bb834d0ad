//! The stored form of a body: complete, or as a delta of an earlier body of its scope.
//!
//! ```text
//!   frame = check (8 bytes) | head | zstd
//!   full:   head = position length                                  zstd = the body
//!   delta:  head = distance, position length, hunks of the          zstd = added bytes of all hunks
//!                  position, state length, hunks of the state
//!   hunks:  count, and for each: unchanged bytes before it, removed bytes, added bytes
//! ```
//!
//! Numbers are LEB128. Most steps change a few bytes of the position and a few places of the state. Unchanged
//! bytes between hunks are stored only as a length, so they are neither compressed nor copied, however large
//! the state is. Added bytes are compressed against the removed bytes and some bytes before them
//! ("patch-from"). So hunks that the matcher cannot separate, for example after two insertions, are cheap
//! too.
//!
//! `check` is the start of the SHA-256 of the frame, with `seq` and codec in place of the check. Damage is
//! detected per frame, and a misplaced frame is not accepted. Eight bytes suffice to detect damage; the
//! digest in the header authenticates the body. SHA-256 is already a dependency, and frames are small.
//!
//! The module makes no decisions and does not know tables; `delta` finds the differences.

use waypost::id::Digest;
use waypost::record::STATE_BYTES_MAX;

use crate::compression::{self, Contexts};
use crate::delta::{HUNKS_MAX, Hunk, Hunks};

/// Largest body in a frame, for writing and reading: a state, plus a position with a frontier of 100,000
/// entries.
pub const BODY_BYTES_MAX: usize = STATE_BYTES_MAX + (16 << 20);
/// Bytes of the check.
const CHECK_BYTES: usize = 8;
/// Bytes of the longest number.
const NUMBER_BYTES_MAX: usize = 10;

/// A body with the end of its position.
#[derive(Debug, Clone, Copy)]
pub struct Body<'a> {
    bytes: &'a [u8],
    position_bytes: usize,
}

impl<'a> Body<'a> {
    /// Returns a body whose first `position_bytes` are its position, or `None` if the body is shorter.
    pub fn new(bytes: &'a [u8], position_bytes: usize) -> Option<Self> {
        (position_bytes <= bytes.len()).then_some(Self { bytes, position_bytes })
    }

    fn position(self) -> &'a [u8] {
        &self.bytes[..self.position_bytes]
    }

    /// Returns the state, including the newline before it.
    fn state(self) -> &'a [u8] {
        &self.bytes[self.position_bytes..]
    }
}

/// A new frame, with its read cost.
#[derive(Debug)]
pub struct Frame {
    /// The stored bytes.
    pub bytes: Vec<u8>,
    /// Bytes to move on decoding, beyond those of a full frame.
    pub moved: u64,
}

impl Frame {
    /// Returns the check, which identifies the frame among frames of the same record.
    pub fn check(&self) -> [u8; CHECK_BYTES] {
        check_of(&self.bytes).expect("a written frame has a checksum")
    }
}

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Complete alone.
    Full,
    /// Made from an earlier body.
    Delta,
}

/// Encodes a body as a full frame.
pub fn full(contexts: &mut Contexts, seq: u64, body: Body<'_>) -> Option<Frame> {
    if body.bytes.len() > BODY_BYTES_MAX {
        return None;
    }
    let mut bytes = vec![0; CHECK_BYTES];
    put(&mut bytes, body.position_bytes as u64);
    contexts.compress(b"", body.bytes, &mut bytes)?;
    write_check(&mut bytes, seq, Kind::Full);
    Some(Frame { bytes, moved: 0 })
}

/// Encodes a body as a delta of the earlier body of record `base`.
pub fn delta(
    contexts: &mut Contexts,
    seq: u64,
    body: Body<'_>,
    base: u64,
    before: Body<'_>,
) -> Option<Frame> {
    if body.bytes.len() > BODY_BYTES_MAX || before.bytes.len() > BODY_BYTES_MAX {
        return None;
    }
    let position = Hunks::between(before.position(), body.position());
    let state = Hunks::between(before.state(), body.state());
    let mut bytes = vec![0; CHECK_BYTES];
    put(&mut bytes, seq.checked_sub(base).filter(|distance| *distance > 0)?);
    for (hunks, after) in [(&position, body.position()), (&state, body.state())] {
        put(&mut bytes, after.len() as u64);
        put(&mut bytes, hunks.0.len() as u64);
        let numbers = hunks.0.iter().flat_map(|hunk| [hunk.stays, hunk.goes, hunk.comes]);
        numbers.for_each(|number| put(&mut bytes, number as u64));
    }
    let (mut reference, mut comes) = (Vec::new(), Vec::new());
    position.reference(before.position(), &mut reference);
    state.reference(before.state(), &mut reference);
    position.comes(body.position(), &mut comes);
    state.comes(body.state(), &mut comes);
    contexts.compress(&reference, &comes, &mut bytes)?;
    write_check(&mut bytes, seq, Kind::Delta);
    let moved = position.moved(before.position().len()) + state.moved(before.state().len());
    Some(Frame { bytes, moved })
}

/// A frame that was read and verified.
#[derive(Debug)]
pub struct ParsedFrame {
    bytes: Vec<u8>,
    /// Start of the compressed part.
    packed_at: usize,
    head: Head,
}

#[derive(Debug)]
enum Head {
    Full { position_bytes: usize, bytes: usize },
    Delta { base: u64, position_bytes: usize, position: Hunks, state_bytes: usize, state: Hunks },
}

impl ParsedFrame {
    /// Verifies the frame of record `seq`.
    ///
    /// # Errors
    /// The defect as text.
    pub fn new(mut bytes: Vec<u8>, seq: u64, kind: Kind) -> Result<Self, String> {
        let found = check_of(&bytes)?;
        write_check(&mut bytes, seq, kind);
        if check_of(&bytes)? != found {
            return Err("the frame does not match its checksum".to_owned());
        }
        let mut numbers = Numbers { bytes: &bytes, at: CHECK_BYTES };
        let head = match kind {
            Kind::Full => Head::Full { position_bytes: numbers.size()?, bytes: 0 },
            Kind::Delta => {
                numbers.next()?;
                let base = base_of(&bytes, seq).ok_or("the frame has no base record")?;
                let (position_bytes, position) = (numbers.size()?, numbers.hunks()?);
                let (state_bytes, state) = (numbers.size()?, numbers.hunks()?);
                Head::Delta { base, position_bytes, position, state_bytes, state }
            }
        };
        let packed_at = numbers.at;
        let head = match head {
            Head::Full { position_bytes, .. } => {
                let bytes = compression::size_of(&bytes[packed_at..], BODY_BYTES_MAX)?;
                if position_bytes > bytes {
                    return Err("the position in the frame is longer than the body".to_owned());
                }
                Head::Full { position_bytes, bytes }
            }
            delta => delta,
        };
        Ok(Self { bytes, packed_at, head })
    }

    /// Returns the base record of a delta; `None` for a full frame.
    pub fn base(&self) -> Option<u64> {
        match &self.head {
            Head::Full { .. } => None,
            Head::Delta { base, .. } => Some(*base),
        }
    }

    /// Returns the size of the body of a full frame.
    pub fn body_bytes(&self) -> Option<usize> {
        match self.head {
            Head::Full { bytes, .. } => Some(bytes),
            Head::Delta { .. } => None,
        }
    }

    /// Returns the size of the frame.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the check, which identifies the frame among frames of the same record.
    pub fn check(&self) -> [u8; CHECK_BYTES] {
        check_of(&self.bytes).expect("the frame was checked before")
    }
}

/// Leading bytes of a delta that contain its base.
pub const BASE_BYTES_MAX: usize = CHECK_BYTES + NUMBER_BYTES_MAX;

/// Returns the base record of a delta from its leading bytes, unverified.
pub fn base_of(begin: &[u8], seq: u64) -> Option<u64> {
    let distance = Numbers { bytes: begin, at: CHECK_BYTES }.next().ok()?;
    seq.checked_sub(distance).filter(|base| distance > 0 && *base > 0)
}

/// Returns the check of a frame.
///
/// # Errors
/// The frame is too short.
fn check_of(bytes: &[u8]) -> Result<[u8; CHECK_BYTES], String> {
    bytes.first_chunk().copied().ok_or_else(|| "the frame is truncated".to_owned())
}

fn write_check(bytes: &mut [u8], seq: u64, kind: Kind) {
    let kind: u64 = match kind {
        Kind::Full => 1,
        Kind::Delta => 2,
    };
    bytes[..CHECK_BYTES].copy_from_slice(&(seq | kind << 56).to_le_bytes());
    let digest = Digest::of(bytes);
    bytes[..CHECK_BYTES].copy_from_slice(&digest.as_bytes()[..CHECK_BYTES]);
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Parses the numbers of a head.
struct Numbers<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Numbers<'_> {
    fn next(&mut self) -> Result<u64, String> {
        let mut number = 0;
        for place in 0..NUMBER_BYTES_MAX {
            let byte = *self.bytes.get(self.at).ok_or("the frame is truncated")?;
            self.at += 1;
            number |= u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("the frame has an unterminated number".to_owned())
    }

    fn size(&mut self) -> Result<usize, String> {
        let number = self.next()?;
        let size = usize::try_from(number).ok().filter(|size| *size <= BODY_BYTES_MAX);
        size.ok_or_else(|| {
            format!("the frame has a length of {number} bytes, the maximum is {BODY_BYTES_MAX}")
        })
    }

    fn hunks(&mut self) -> Result<Hunks, String> {
        let count = self.size()?;
        if count > HUNKS_MAX {
            return Err(format!("the frame has {count} hunks, the maximum is {HUNKS_MAX}"));
        }
        let mut hunk = || Ok(Hunk { stays: self.size()?, goes: self.size()?, comes: self.size()? });
        (0..count).map(|_| hunk()).collect::<Result<_, String>>().map(Hunks)
    }
}

/// A body under construction, frame by frame.
#[derive(Debug, Default)]
pub struct BodyBuilder {
    position: Vec<u8>,
    state: Vec<u8>,
    reference: Vec<u8>,
    comes: Vec<u8>,
}

impl BodyBuilder {
    /// Starts with a known body.
    pub fn of(body: Body<'_>) -> Self {
        Self { position: body.position().to_vec(), state: body.state().to_vec(), ..Self::default() }
    }

    /// Replaces the body by the body of the next frame; returns the number of moved bytes.
    ///
    /// # Errors
    /// The reason why the frame does not fit; the body is then invalid.
    pub fn apply(&mut self, contexts: &mut Contexts, frame: &ParsedFrame) -> Result<u64, String> {
        let encoded = &frame.bytes[frame.packed_at..];
        match &frame.head {
            Head::Full { position_bytes, bytes } => {
                contexts.decompress(b"", encoded, *bytes, &mut self.state)?;
                self.position = self.state.drain(..*position_bytes).collect();
                Ok(0)
            }
            Head::Delta { position_bytes, position, state_bytes, state, .. } => {
                position.check(self.position.len(), *position_bytes)?;
                state.check(self.state.len(), *state_bytes)?;
                if position_bytes + state_bytes > BODY_BYTES_MAX {
                    return Err("the frame expands beyond the maximum body size".to_owned());
                }
                self.reference.clear();
                position.reference(&self.position, &mut self.reference);
                state.reference(&self.state, &mut self.reference);
                let comes = position.coming() + state.coming();
                contexts.decompress(&self.reference, encoded, comes, &mut self.comes)?;
                let (of_position, of_state) = self.comes.split_at(position.coming());
                let moved = position.moved(self.position.len()) + state.moved(self.state.len());
                position.apply(&mut self.position, of_position);
                state.apply(&mut self.state, of_state);
                Ok(moved)
            }
        }
    }

    /// Returns the body.
    pub fn finish(self) -> Vec<u8> {
        let mut bytes = self.position;
        bytes.reserve_exact(self.state.len());
        bytes.extend_from_slice(&self.state);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::compression::Compressor;

    fn builder(compressor: &Compressor, frames: &[(u64, Kind, Vec<u8>)]) -> Result<Vec<u8>, String> {
        let mut builder = BodyBuilder::default();
        for (seq, kind, bytes) in frames {
            let frame = ParsedFrame::new(bytes.clone(), *seq, *kind)?;
            builder.apply(&mut compressor.contexts(), &frame)?;
        }
        Ok(builder.finish())
    }

    /// A change of a body: a piece of the position or state is replaced.
    #[derive(Debug, Clone)]
    struct Change {
        in_position: bool,
        at: prop::sample::Index,
        loss: usize,
        with: Vec<u8>,
    }

    fn changes() -> impl Strategy<Value = Vec<Vec<Change>>> {
        let piece = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            (any::<u8>(), 0..3_000_usize).prop_map(|(byte, count)| vec![byte; count]),
            prop::collection::vec(any::<u8>(), 500..1_500),
        ];
        let change = (any::<bool>(), any::<prop::sample::Index>(), 0..2_000_usize, piece);
        let change = change.prop_map(|(in_position, at, loss, with)| Change { in_position, at, loss, with });
        prop::collection::vec(prop::collection::vec(change, 0..4), 1..12)
    }

    fn carry_out(parts: &mut [Vec<u8>; 2], change: &Change) {
        let part = &mut parts[usize::from(!change.in_position)];
        let at = change.at.index(part.len() + 1);
        let end = part.len().min(at + change.loss);
        part.splice(at..end, change.with.iter().copied());
    }

    proptest! {
        #[test]
        fn bodies_come_back_through_any_chain(steps in changes()) {
            let compressor = Compressor::default();
            let mut parts = [b"{}".to_vec(), b"\n[]".to_vec()];
            let mut before = (parts.concat(), parts[0].len());
            let first = full(&mut compressor.contexts(), 1, Body::new(&before.0, before.1).unwrap()).unwrap();
            let mut frames = vec![(1, Kind::Full, first.bytes)];
            prop_assert_eq!(&builder(&compressor, &frames).unwrap(), &before.0);

            for (step, changes) in steps.iter().enumerate() {
                changes.iter().for_each(|change| carry_out(&mut parts, change));
                let (seq, after) = (2 + 3 * step as u64, (parts.concat(), parts[0].len()));
                let base = frames.last().unwrap().0;
                let old = Body::new(&before.0, before.1).unwrap();
                let new = Body::new(&after.0, after.1).unwrap();
                let frame = delta(&mut compressor.contexts(), seq, new, base, old).unwrap();
                prop_assert_eq!(base_of(&frame.bytes[..frame.bytes.len().min(BASE_BYTES_MAX)], seq), Some(base));
                let mut made = BodyBuilder::of(old);
                let opened = ParsedFrame::new(frame.bytes.clone(), seq, Kind::Delta).unwrap();
                let moved = made.apply(&mut compressor.contexts(), &opened).unwrap();
                prop_assert_eq!(moved, frame.moved, "writer and reader count alike");
                frames.push((seq, Kind::Delta, frame.bytes));
                prop_assert_eq!(&builder(&compressor, &frames).unwrap(), &after.0);
                before = after;
            }
        }

        #[test]
        fn no_bytes_lead_to_a_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..80), sealed in any::<bool>()) {
            let compressor = Compressor::default();
            for kind in [Kind::Full, Kind::Delta] {
                if sealed && bytes.len() >= CHECK_BYTES {
                    write_check(&mut bytes, 9, kind);
                }
                let old = Body::new(b"{}\n[1,2,3]", 2).unwrap();
                if let Ok(frame) = ParsedFrame::new(bytes.clone(), 9, kind) {
                    let _ = BodyBuilder::of(old).apply(&mut compressor.contexts(), &frame);
                }
            }
        }
    }

    #[test]
    fn every_changed_bit_of_a_frame_is_seen_in_that_frame() {
        let compressor = Compressor::default();
        let old = b"{\"frontier\":[]}\n{\"text\":\"something that was there before\"}";
        let new = b"{\"frontier\":[1]}\n{\"text\":\"something that was there before, and more\"}";
        let frame =
            delta(&mut compressor.contexts(), 7, Body::new(new, 16).unwrap(), 5, Body::new(old, 15).unwrap())
                .unwrap();

        for place in 0..frame.bytes.len() * 8 {
            let mut changed = frame.bytes.clone();
            changed[place / 8] ^= 1 << (place % 8);
            ParsedFrame::new(changed, 7, Kind::Delta).unwrap_err();
        }
        for length in 0..frame.bytes.len() {
            ParsedFrame::new(frame.bytes[..length].to_vec(), 7, Kind::Delta).unwrap_err();
        }
        ParsedFrame::new(frame.bytes.clone(), 8, Kind::Delta).unwrap_err();
        ParsedFrame::new(frame.bytes.clone(), 7, Kind::Full).unwrap_err();
        assert_eq!(ParsedFrame::new(frame.bytes, 7, Kind::Delta).unwrap().base(), Some(5));
    }

    #[test]
    fn an_oversized_frame_is_refused_before_decompression() {
        let compressor = Compressor::default();
        let mut bytes = vec![0; CHECK_BYTES];
        put(&mut bytes, 0);
        compressor.contexts().compress(b"", &vec![0; BODY_BYTES_MAX + 1], &mut bytes).unwrap();
        write_check(&mut bytes, 1, Kind::Full);

        let error = ParsedFrame::new(bytes, 1, Kind::Full).unwrap_err();

        assert_eq!(
            error,
            format!(
                "the compressed data has {} bytes of content, the maximum is {BODY_BYTES_MAX}",
                BODY_BYTES_MAX + 1
            )
        );
    }

    #[test]
    fn an_end_that_grows_costs_no_more_the_longer_it_gets() {
        let compressor = Compressor::default();
        let text = |count: usize| {
            let lines: String = (0..count).map(|line| format!("{{\"line\":{line}}},")).collect();
            format!("{{\"since\":{count}}}\n[{lines}0]")
        };
        for count in [10, 1_000, 50_000] {
            let (old, new) = (text(count), text(count + 1));
            let split = |body: &'static str| Body::new(body.as_bytes(), body.find('\n').unwrap()).unwrap();
            let (old, new) = (split(old.leak()), split(new.leak()));

            let frame = delta(&mut compressor.contexts(), 2, new, 1, old).unwrap();

            assert!(frame.bytes.len() < 100, "{} bytes", frame.bytes.len());
            assert!(frame.moved < 100, "{} bytes moved", frame.moved);
        }
    }
}
