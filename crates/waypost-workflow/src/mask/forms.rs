//! Encoded forms of a secret: plain, and as common programs write it.
//!
//! Each function covers one encoding. Forms may repeat. A form is never shorter than the secret, except the
//! inner part of base64, which is longer from eight bytes on.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// Line widths of `base64` (76) and of `openssl` and PEM (64).
const LINE_WIDTHS: [usize; 2] = [76, 64];

/// Longest secret with forms for wrapped base64 of a surrounding text: a token, or a key with its frame.
/// About two hundred forms exist, one for each position of the line break.
const WITHIN_LINES_BYTES_MAX: usize = 4096;

/// Deepest indentation of a secret's lines: eight levels of YAML or JSON, or four tabs.
const INDENT_SPACES_MAX: usize = 16;
/// Deepest indentation in tabs.
const INDENT_TABS_MAX: usize = 4;

/// Returns all forms of a secret.
pub(super) fn of(value: &[u8]) -> Vec<Vec<u8>> {
    let mut forms = vec![value.to_vec()];
    indented(value, &mut forms);
    base64(value, &mut forms);
    base64_within_lines(value, &mut forms);
    url(value, &mut forms);
    shell(value, &mut forms);
    let lossy = String::from_utf8_lossy(value);
    json(&lossy, &mut forms);
    if lossy.as_bytes() != value {
        // Bytes that are not UTF-8, after a lossy conversion to a string.
        forms.push(lossy.into_owned().into_bytes());
    }
    forms
}

/// Adds the indented forms of a secret with several lines: a key within YAML, or after `sed 's/^/  /'`.
fn indented(value: &[u8], forms: &mut Vec<Vec<u8>>) {
    let lines: Vec<&[u8]> = value.split(|byte| *byte == b'\n').collect();
    if lines.len() < 2 {
        return;
    }
    let spaces = (1..=INDENT_SPACES_MAX).map(|count| vec![b' '; count]);
    let tabs = (1..=INDENT_TABS_MAX).map(|count| vec![b'\t'; count]);
    for indent in spaces.chain(tabs) {
        // Some programs indent empty lines, others do not.
        for moves_empty in [true, false] {
            let mut form = lines[0].to_vec();
            for line in &lines[1..] {
                form.push(b'\n');
                if moves_empty || !line.trim_ascii().is_empty() {
                    form.extend_from_slice(&indent);
                }
                form.extend_from_slice(line);
            }
            forms.push(form);
        }
    }
}

/// Adds base64 in both alphabets: alone, with and without padding, wrapped, and as part of a longer text.
fn base64(value: &[u8], forms: &mut Vec<Vec<u8>>) {
    for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
        let alone = engine.encode(value);
        let padding = "=".repeat((4 - alone.len() % 4) % 4);
        let padded = alone.clone() + &padding;
        for width in LINE_WIDTHS {
            for end in ["\n", "\r\n"] {
                forms.push(in_lines(&alone, width, end));
                forms.push(in_lines(&padded, width, end));
            }
        }
        forms.push(alone.into_bytes());
        forms.push(padded.into_bytes());
        // In a longer text the secret begins at the first, second or third byte of a group of three. Only
        // characters with all six bits from the secret are known, and the last character if the secret ends
        // the text.
        for before in 0..3 {
            let bytes = [&[0; 3][..before], value].concat();
            let encoded = engine.encode(&bytes).into_bytes();
            let padding = &b"=="[..(4 - encoded.len() % 4) % 4];
            let (first, last) = ((before * 8).div_ceil(6), bytes.len() * 8 / 6);
            forms.push(encoded[first..last].to_vec());
            forms.push([&encoded[first..], padding].concat());
            forms.push(encoded[first..].to_vec());
        }
    }
}

fn in_lines(encoded: &str, width: usize, end: &str) -> Vec<u8> {
    let lines: Vec<&[u8]> = encoded.as_bytes().chunks(width).collect();
    lines.join(end.as_bytes())
}

/// Adds wrapped base64 of a longer text, for every position of the secret: `printf 'user:%s' "$SECRET" |
/// base64`.
fn base64_within_lines(value: &[u8], forms: &mut Vec<Vec<u8>>) {
    if value.len() > WITHIN_LINES_BYTES_MAX {
        return;
    }
    for width in LINE_WIDTHS {
        // The forms repeat after one full line of bytes.
        for before in 0..width / 4 * 3 {
            let bytes = [&vec![0; before], value].concat();
            let encoded = STANDARD_NO_PAD.encode(&bytes).into_bytes();
            let (first, last) = ((before * 8).div_ceil(6), bytes.len() * 8 / 6);
            let lines: Vec<&[u8]> = encoded[..last]
                .chunks(width)
                .enumerate()
                .filter_map(|(line, chunk)| chunk.get(first.saturating_sub(line * width)..))
                .filter(|known| !known.is_empty())
                .collect();
            if lines.len() > 1 {
                forms.push(lines.join(&b"\n"[..]));
                forms.push(lines.join(&b"\r\n"[..]));
            }
        }
    }
}

/// Adds percent-encoding, for the unescaped characters of each kind of encoder.
fn url(value: &[u8], forms: &mut Vec<Vec<u8>>) {
    const KEPT: [&[u8]; 5] = [
        // RFC 3986, curl, Go, Rust's `url`.
        b"-._~",
        // Python's `quote`.
        b"-._~/",
        // `encodeURIComponent`.
        b"-_.!~*'()",
        // `encodeURI`.
        b"-_.!~*'();/?:@&=+$,#",
        // HTML forms.
        b"*-._",
    ];
    const DIGITS: [&[u8; 16]; 2] = [b"0123456789ABCDEF", b"0123456789abcdef"];
    for hex in DIGITS {
        // Each byte by number, letters too.
        let escaped = |byte: &u8| [b'%', hex[usize::from(byte >> 4)], hex[usize::from(byte & 15)]];
        forms.push(value.iter().flat_map(escaped).collect());
    }
    for kept in KEPT {
        for hex in DIGITS {
            for space in [&b"%20"[..], b"+"] {
                let mut form = Vec::with_capacity(value.len() * 3);
                for byte in value {
                    match byte {
                        b' ' => form.extend_from_slice(space),
                        byte if byte.is_ascii_alphanumeric() || kept.contains(byte) => form.push(*byte),
                        byte => {
                            let digits = [hex[usize::from(byte >> 4)], hex[usize::from(byte & 15)]];
                            form.extend_from_slice(&[b'%', digits[0], digits[1]]);
                        }
                    }
                }
                forms.push(form);
            }
        }
    }
}

/// Adds the content of a JSON string, for the escapes of each kind of encoder.
fn json(text: &str, forms: &mut Vec<Vec<u8>>) {
    // Each character by number: allowed, but never required.
    for upper in [false, true] {
        let style = JsonStyle { upper, ..JsonStyle::default() };
        forms.push(text.chars().map(|char| style.number(char)).collect::<String>().into_bytes());
    }
    for ascii_only in [false, true] {
        for slash in [false, true] {
            for html in [false, true] {
                for short in [false, true] {
                    for upper in [false, true] {
                        for delete in [false, true] {
                            let style = JsonStyle { ascii_only, slash, html, short, upper, delete };
                            forms.push(style.escape_all(text));
                        }
                    }
                }
            }
        }
    }
}

/// Escapes of a JSON encoder.
#[derive(Clone, Copy, Default)]
struct JsonStyle {
    /// Characters beyond ASCII, as in Python.
    ascii_only: bool,
    /// Slash, as in PHP.
    slash: bool,
    /// `<`, `>`, `&` and the two Unicode line ends, as in Go.
    html: bool,
    /// `\b` and `\f` by letter instead of number.
    short: bool,
    /// Numbers in upper case.
    upper: bool,
    /// Delete character, as in jq.
    delete: bool,
}

impl JsonStyle {
    fn escape_all(self, text: &str) -> Vec<u8> {
        text.chars().map(|char| self.escape(char)).collect::<String>().into_bytes()
    }

    fn escape(self, char: char) -> String {
        match char {
            '"' => "\\\"".into(),
            '\\' => "\\\\".into(),
            '\n' => "\\n".into(),
            '\r' => "\\r".into(),
            '\t' => "\\t".into(),
            '\u{8}' if self.short => "\\b".into(),
            '\u{c}' if self.short => "\\f".into(),
            '/' if self.slash => "\\/".into(),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' if self.html => self.number(char),
            '\0'..'\u{20}' => self.number(char),
            '\u{7f}' if self.delete => self.number(char),
            '\u{80}'.. if self.ascii_only => self.number(char),
            _ => char.into(),
        }
    }

    fn number(self, char: char) -> String {
        let units = char.encode_utf16(&mut [0; 2]).to_vec();
        let escape =
            |unit: &u16| if self.upper { format!("\\u{unit:04X}") } else { format!("\\u{unit:04x}") };
        units.iter().map(escape).collect()
    }
}

/// Adds the content of a quoted word, as shells and similar programs write it.
fn shell(value: &[u8], forms: &mut Vec<Vec<u8>>) {
    let escaped =
        |escape: &dyn Fn(u8) -> Vec<u8>| value.iter().flat_map(|byte| escape(*byte)).collect::<Vec<u8>>();
    // '...' with a quote as '\'' (bash, most programs), or as '"'"' (dash, Python's `shlex`).
    forms.push(escaped(&|byte| if byte == b'\'' { br"'\''".to_vec() } else { vec![byte] }));
    forms.push(escaped(&|byte| if byte == b'\'' { br#"'"'"'"#.to_vec() } else { vec![byte] }));
    // "..." with backslashes before special characters.
    forms.push(escaped(&|byte| with_backslash(byte, b"\"$`\\")));
    forms.push(escaped(&|byte| with_backslash(byte, b"\"$`\\!")));
    // Backslashes before all special characters, as in bash's `printf %q`.
    forms.push(escaped(&|byte| with_backslash(byte, b" !\"#$&'()*,;<>?[\\]^`{|}")));
    forms.push(escaped(&|byte| with_backslash(byte, b" !\"#$&'()*,;<>?[\\]^`{|}~=%:@+")));
    // $'...' as bash writes text with control characters; bytes beyond ASCII unchanged, or by number.
    forms.push(escaped(&|byte| ansi_c(byte, false)));
    forms.push(escaped(&|byte| ansi_c(byte, true)));
}

fn with_backslash(byte: u8, special: &[u8]) -> Vec<u8> {
    if special.contains(&byte) { vec![b'\\', byte] } else { vec![byte] }
}

fn ansi_c(byte: u8, high_by_number: bool) -> Vec<u8> {
    match byte {
        b'\'' => br"\'".to_vec(),
        b'\\' => br"\\".to_vec(),
        7 => br"\a".to_vec(),
        8 => br"\b".to_vec(),
        b'\t' => br"\t".to_vec(),
        b'\n' => br"\n".to_vec(),
        11 => br"\v".to_vec(),
        12 => br"\f".to_vec(),
        b'\r' => br"\r".to_vec(),
        27 => br"\E".to_vec(),
        ..32 | 127 => format!("\\{byte:03o}").into_bytes(),
        128.. if high_by_number => format!("\\{byte:03o}").into_bytes(),
        _ => vec![byte],
    }
}
