//! A header as it is kept: most of it is names that every header has, so that it is compressed against a text that has
//! them all. Each header stands alone: the damage of one is the damage of one.
//!
//! What is kept begins with [`PACKED`], or is the header itself, which begins with a brace.

use waypost::record::HEADER_BYTES_MAX;

use crate::squeeze::{self, Contexts};

/// First byte of a header that was compressed against [`NAMES`].
const PACKED: u8 = 1;

/// What headers have in common, most frequent last. Part of the format: another text needs another first byte.
const NAMES: &[u8] = br#""usage":{"tokens_in":0,"tokens_out":0,"cost":0.0,"model":""},"notes":[{"event":{"name":"","data":{}}},{"report":""},{"warning":""}],"evidence":{"claims":[{"name":"","kind":"file_sha256","subject":"","expect":null,"found":null,"verdict":"ok","checked_at":"2026-01-01T00:00:00.000000000Z"}]},"about":,"external":"","children":","definition":{"text":null,"steps":[]},"resumed":true,"status":"completed_with_failures","status":"interrupted","status":"in_doubt","end":"skipped","end":"cancelled","end":"failed","end":"completed",{"v":1,"run":"","branch":"main","seq":1,"reason":"start","root":","reason":"rollback","reason":"repair","reason":"stopped","reason":"interval","reason":"interrupt","reason":"answer","reason":"manual","reason":"fork","reason":"join","reason":"accept","reason":"redo","reason":"cancel","reason":"retry","basis":,"at":{"attempt":2,"iteration":[1],"epoch":1},"phase":"started","phase":"restored","phase":{"waiting":[{"id":"","key":"","on":{"until":"","on":"children","question":"","phase":{"skipped":{"need":"","phase":{"skipped":{"condition":"","phase":{"progress":{"key":"","value":,"phase":{"interrupted":{"in_progress":true,"by":"SIGINT"}},"phase":{"failed":{"kind":"exit","error":["exit code 1"],"retried":true,"tolerated":true,"ending":{"exit_code":1,"outputs_bytes":,"command":"","started":[{"step":"","at":{"attempt":1}},{"step":"{"v":1,"run":"","branch":"main","seq":2,"prev":"0123456789abcdef","reason":"step","step":"","at":{"attempt":1},"phase":{"completed":{"exit_code":0,"outputs":{"":""},"log":{"bytes":0,"digest":"","tail":"\n"}}},"started":[{"step":"","at":{"attempt":1}}],"body":{"digest":"","bytes":0,"position_bytes":0,"codec":"json","schema":1},"token":1,"created_at":"2026-"#;

/// Returns the bytes to keep for a header.
pub(crate) fn pack(contexts: &mut Contexts, header: &[u8]) -> Vec<u8> {
    let mut kept = vec![PACKED];
    match contexts.pack(NAMES, header, &mut kept) {
        Some(()) if kept.len() < header.len() => kept,
        _ => header.to_vec(),
    }
}

/// Returns the header that was kept as these bytes.
///
/// # Errors
/// Says why there is none.
pub(crate) fn unpack(contexts: &mut Contexts, kept: Vec<u8>) -> Result<Vec<u8>, String> {
    match kept.first() {
        Some(&PACKED) => {}
        // That it is a header at all, its digest says.
        _ => return Ok(kept),
    }
    let bytes = squeeze::size_of(&kept[1..], HEADER_BYTES_MAX)?;
    let mut header = Vec::new();
    contexts.unpack(NAMES, &kept[1..], bytes, &mut header)?;
    Ok(header)
}
