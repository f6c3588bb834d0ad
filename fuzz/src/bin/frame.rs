//! Packed headers and frames of a database store, also damaged frames with a valid check.
#![no_main]

use libfuzzer_sys::fuzz_target;
use waypost::Digest;
use waypost_codec::compression::{Compressor, Contexts};
use waypost_codec::frame::{Body, BodyBuilder, Kind, ParsedFrame, delta, full};
use waypost_codec::header;

/// Most bytes of a header in this target.
const HEADER_BYTES_MAX: usize = 2 << 20;
/// Bytes of the check at the beginning of a frame.
const CHECK_BYTES: usize = 8;

fuzz_target!(|bytes: &[u8]| {
    let compressor = Compressor::default();
    let contexts = &mut compressor.contexts();
    drop(header::decode(contexts, bytes.to_vec(), HEADER_BYTES_MAX));
    let packed = header::encode(contexts, bytes);
    if packed != bytes {
        assert_eq!(header::decode(contexts, packed, HEADER_BYTES_MAX).as_deref(), Ok(bytes));
    }
    for kind in [Kind::Full, Kind::Delta] {
        apply(
            contexts,
            Body::new(b"{}\n[1,2,3]", 2).expect("it is longer"),
            checked(bytes.to_vec(), kind),
            kind,
        );
    }

    let &[at, value, split, ref bodies @ ..] = bytes else { return };
    let (old, new) = bodies.split_at(usize::from(split).min(bodies.len()));
    let place = |body: &[u8]| body.len().min(usize::from(at));
    let old = Body::new(old, place(old)).expect("the position is a part");
    let body = Body::new(new, place(new)).expect("the position is a part");
    let Some(frame) = delta(contexts, 2, body, 1, old) else { return };
    for (frame, kind) in [(frame, Kind::Delta), (full(contexts, 2, body).expect("it is small"), Kind::Full)] {
        assert_eq!(apply(contexts, old, frame.bytes.clone(), kind).as_deref(), Some(new));
        let mut damaged = frame.bytes;
        let place = CHECK_BYTES + usize::from(at) % (damaged.len() - CHECK_BYTES);
        damaged[place] = value;
        apply(contexts, old, checked(damaged, kind), kind);
    }
});

/// Returns the body that a frame gives after `old`.
fn apply(contexts: &mut Contexts, old: Body<'_>, frame: Vec<u8>, kind: Kind) -> Option<Vec<u8>> {
    let frame = ParsedFrame::new(frame, 2, kind).ok()?;
    let mut builder = BodyBuilder::of(old);
    builder.apply(contexts, &frame).ok()?;
    Some(builder.finish())
}

/// Writes the check of the frame of record 2 (docs/concepts/format.md).
fn checked(mut frame: Vec<u8>, kind: Kind) -> Vec<u8> {
    if frame.len() >= CHECK_BYTES {
        let kind: u64 = if kind == Kind::Full { 1 } else { 2 };
        frame[..CHECK_BYTES].copy_from_slice(&(2 | kind << 56).to_le_bytes());
        let digest = Digest::of(&frame);
        frame[..CHECK_BYTES].copy_from_slice(&digest.as_bytes()[..CHECK_BYTES]);
    }
    frame
}
