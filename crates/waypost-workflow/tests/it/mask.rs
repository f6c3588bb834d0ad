//! Secrets are masked in every form, wherever a stream is cut.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use waypost_workflow::mask::{Mask, MaskError, SECRET_BYTES_MAX};

fn mask(secrets: &[&str]) -> Mask {
    Mask::new(secrets.iter().map(|secret| ("S", secret.as_bytes()))).unwrap()
}

fn masked(secrets: &[&str], text: &str) -> String {
    mask(secrets).mask_str(text).into_owned()
}

/// Masks `bytes` as a stream cut at these places.
fn in_chunks(mask: &Mask, bytes: &[u8], cuts: &[usize]) -> Vec<u8> {
    let mut stream = mask.stream();
    let mut out = Vec::new();
    let mut from = 0;
    for cut in cuts.iter().copied().chain([bytes.len()]) {
        stream.push(&bytes[from..cut], &mut out);
        from = cut;
    }
    stream.finish(&mut out);
    out
}

/// A secret with everything that some encoder escapes, and its forms as real programs write them.
const ODD: &str = "p@ss w'rd\"$x/é&<k>\\z";

#[test]
fn the_forms_that_real_programs_write_are_masked() {
    for form in [
        ODD,
        // base64: alone; `user:` and one byte before; `us:` before and `!` behind.
        "cEBzcyB3J3JkIiR4L8OpJjxrPlx6",
        // bash: printf %q, set -x, ${x@Q}.
        r#"p@ss\ w\'rd\"\$x/é\&\<k\>\\z"#,
        r#"'p@ss w'\''rd"$x/é&<k>\z'"#,
        // Python: json.dumps, shlex.quote, urllib.parse.quote, quote_plus, quote(safe='').
        r#""p@ss w'rd\"$x/\u00e9&<k>\\z""#,
        r#""p@ss w'rd\"$x/é&<k>\\z""#,
        r#"'p@ss w'"'"'rd"$x/é&<k>\z'"#,
        "p%40ss%20w%27rd%22%24x/%C3%A9%26%3Ck%3E%5Cz",
        "p%40ss+w%27rd%22%24x%2F%C3%A9%26%3Ck%3E%5Cz",
        "p%40ss%20w%27rd%22%24x%2F%C3%A9%26%3Ck%3E%5Cz",
        "p%40ss%20w%27rd%22%24x%2f%c3%a9%26%3ck%3e%5cz",
        // JavaScript: encodeURIComponent, encodeURI. Go: json.Marshal. PHP: json_encode.
        "p%40ss%20w'rd%22%24x%2F%C3%A9%26%3Ck%3E%5Cz",
        "p@ss%20w'rd%22$x/%C3%A9&%3Ck%3E%5Cz",
        r#""p@ss w'rd\"$x/é\u0026\u003ck\u003e\\z""#,
        r#""p@ss w'rd\"$x\/\u00e9&<k>\\z""#,
        // In double quotes.
        r#""p@ss w'rd\"\$x/é&<k>\\z""#,
    ] {
        let text = format!("before {form} behind");

        let masked = masked(&[ODD], &text);

        assert!(
            ["before *** behind", "before \"***\" behind", "before '***' behind"].contains(&&*masked),
            "{masked}"
        );
        assert!(mask(&[ODD]).contains(text.as_bytes()));
    }
}

#[test]
fn a_secret_written_by_numbers_alone_is_masked() {
    // What happened: a token passed through an encoder that writes every character by its number, and stood in the log.
    // Why: only what must be escaped was looked for in escaped form.
    // What stops it now: the form in which everything is escaped is one of those that are looked for.
    let secret = "tok-\u{e9}1234";
    for form in [
        r"\u0074\u006f\u006b\u002d\u00e9\u0031\u0032\u0033\u0034",
        r"\u0074\u006F\u006B\u002D\u00E9\u0031\u0032\u0033\u0034",
        "%74%6F%6B%2D%C3%A9%31%32%33%34",
        "%74%6f%6b%2d%c3%a9%31%32%33%34",
    ] {
        assert_eq!(masked(&[secret], &format!("a {form} b")), "a *** b");
    }
}

#[test]
fn a_secret_of_several_lines_is_masked_when_it_is_indented() {
    // What happened: a key in PEM, printed within a YAML document, stood in the log.
    // Why: its lines were looked for at the beginning of a line.
    // What stops it now: each indent up to sixteen spaces or four tabs gives a form of its own.
    let key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\n\nAQEFAASCBKcwggSjAgEA\n-----END KEY-----\n";
    for indent in [" ", "  ", "    ", "                ", "\t", "\t\t\t\t"] {
        let moved: String = key.lines().map(|line| format!("{indent}{line}\n")).collect();
        assert_eq!(masked(&[key], &format!("key: |\n{moved}end")), format!("key: |\n{indent}***\nend"));
        let as_yaml = moved.replace(&format!("\n{indent}\n"), "\n\n");
        assert_eq!(masked(&[key], &as_yaml), format!("{indent}***\n"));
    }
    // A line of it alone is not the secret.
    let begin = "-----BEGIN KEY-----\nMIIE";
    assert_eq!(masked(&[key], begin), begin);
}

#[test]
fn base64_is_masked_at_each_alignment_within_something_longer() {
    // `user:SECRET`, `us:SECRET!`, and a byte before, as base64 writes them.
    for (text, expected) in [
        ("dXNlcjpwQHNzIHcncmQiJHgvw6kmPGs+XHo=", "dXNlcjp***"),
        ("dXM6cEBzcyB3J3JkIiR4L8OpJjxrPlx6IQ==", "dXM6***IQ=="),
    ] {
        assert_eq!(masked(&[ODD], text), expected);
    }
    // In the URL alphabet, with and without padding, alone.
    let bytes = "??>>~~~\u{ff}x";
    for form in ["Pz8-Pn5-fsO_eA", "Pz8-Pn5-fsO_eA==", "Pz8+Pn5+fsO/eA", "Pz8+Pn5+fsO/eA=="] {
        assert_eq!(masked(&[bytes], form), "***");
    }
}

#[test]
fn base64_in_lines_is_masked() {
    let secret = "0123456789".repeat(9);
    // As `base64` and as `openssl base64` write it.
    let at_76 = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2\n\
                 Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5";
    let at_64 = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3\n\
                 ODkwMTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5";

    assert_eq!(masked(&[&secret], at_76), "***");
    assert_eq!(masked(&[&secret], at_64), "***");
    assert_eq!(masked(&[&secret], &at_76.replace('\n', "\r\n")), "***");
}

#[test]
fn control_characters_are_masked_as_shells_and_json_write_them() {
    let secret = "key\n\ttab\u{1b}[0m\u{7f}end";
    for form in
        [secret, r"key\n\ttab\E[0m\177end", r"key\n\ttab\u001b[0m\u007fend", "key%0A%09tab%1B%5B0m%7Fend"]
    {
        assert_eq!(masked(&[secret], form), "***", "{form:?}");
    }
}

#[test]
fn a_binary_secret_is_masked_raw_and_as_text() {
    let secret = b"\xff\xfe\x00binary\x80key";
    let mask = Mask::new([("S", &secret[..])]).unwrap();

    assert_eq!(mask.mask_bytes(&[b"<", &secret[..], b">"].concat()), b"<***>");
    assert_eq!(mask.mask_str(&String::from_utf8_lossy(secret)), "***");
}

#[test]
fn overlapping_secrets_leave_nothing_of_either() {
    let secrets = ["abcdefgh", "efghijkl", "abcdefghij"];

    assert_eq!(masked(&secrets, "-abcdefghijkl-"), "-***-");
    assert_eq!(masked(&secrets, "-abcdefgh-"), "-***-");
    assert_eq!(masked(&secrets, "-abcdefghij-"), "-***-");
    assert_eq!(masked(&secrets, "abcdefghefghijkl"), "******");
    assert_eq!(masked(&["aaaaaaaa"], &"a".repeat(30)), "***");
    assert_eq!(masked(&["abcdefgh"], "abcdefghabcdefgh"), "******");
}

#[test]
fn ordinary_text_is_untouched_and_not_held_back() {
    let mask = mask(&["correct horse battery staple"]);
    let mut out = Vec::new();
    let mut stream = mask.stream();

    stream.push(b"Password: ", &mut out);
    assert_eq!(out, b"Password: ");
    stream.push(b"correct ho", &mut out);
    assert_eq!(out, b"Password: ");
    stream.push(b"use", &mut out);
    assert_eq!(out, b"Password: correct house");
    assert!(matches!(mask.mask_str("nothing here"), std::borrow::Cow::Borrowed(_)));
    assert!(!mask.contains(b"correct horse battery stapl"));
}

#[test]
fn values_that_cannot_be_masked_are_refused_without_being_shown() {
    let refuse = |value: &[u8]| Mask::new([("TOKEN", value)]).unwrap_err();

    assert_eq!(refuse(b"1234567"), MaskError::TooShort { name: "TOKEN".into(), bytes: 7 });
    assert_eq!(refuse(b"  1234567\n\n"), MaskError::TooShort { name: "TOKEN".into(), bytes: 7 });
    assert_eq!(refuse(b""), MaskError::TooShort { name: "TOKEN".into(), bytes: 0 });
    let long = vec![b'x'; SECRET_BYTES_MAX + 1];
    assert_eq!(refuse(&long), MaskError::TooLong { name: "TOKEN".into(), bytes: long.len() });
    assert!(!refuse(b"1234567").to_string().contains("1234567"));
    assert!(!format!("{:?}", mask(&["topsecret"])).contains("topsecret"));
}

#[test]
fn without_secrets_everything_passes() {
    let mask = Mask::default();

    assert!(mask.is_empty());
    assert_eq!(mask.mask_bytes(b"\x00\xff anything"), b"\x00\xff anything");
    assert!(!mask.contains(b""));
}

#[test]
fn every_cut_gives_what_the_whole_gives() {
    let mask = mask(&["abcdefgh", "efghijkl", "abcdefghij", ODD]);
    let text = format!("x abcdefghijkl abcdefg {ODD} cEBzcyB3J3JkIiR4L8OpJjxrPlx6 abcdefghabcdefghi efghijk");
    let whole = mask.mask_bytes(text.as_bytes());

    for first in 0..=text.len() {
        for second in first..=text.len() {
            assert_eq!(
                in_chunks(&mask, text.as_bytes(), &[first, second]),
                whole,
                "cut at {first} and {second}"
            );
        }
    }
    assert_eq!(in_chunks(&mask, text.as_bytes(), &(0..text.len()).collect::<Vec<_>>()), whole);
}

/// Masks as simply as possible: marks what any of the secrets, found at every place, covers.
fn by_hand(secrets: &[String], bytes: &[u8]) -> Vec<u8> {
    let mut ranges = Vec::new();
    for start in 0..bytes.len() {
        let here = secrets.iter().filter(|secret| bytes[start..].starts_with(secret.as_bytes()));
        ranges.extend(here.map(|secret| (start, start + secret.len())).max());
    }
    let mut out = Vec::new();
    let mut done = 0;
    for (start, end) in ranges {
        if start >= done {
            out.extend_from_slice(&bytes[done..start]);
            out.extend_from_slice(b"***");
        }
        done = done.max(end);
    }
    out.extend_from_slice(&bytes[done..]);
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Secrets of two letters overlap with themselves and each other in every way; encoded forms have other letters.
    #[test]
    fn random_streams_in_random_chunks_are_masked_as_by_hand(
        secrets in prop::collection::vec("[ab]{8,12}", 1..4),
        text in "[ab]{0,120}",
        cuts in prop::collection::vec(0_usize..120, 0..12),
    ) {
        let mask = Mask::new(secrets.iter().map(|secret| ("S", secret.as_bytes()))).unwrap();
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut <= text.len()).collect();
        cuts.sort_unstable();

        let out = in_chunks(&mask, text.as_bytes(), &cuts);

        prop_assert_eq!(out, by_hand(&secrets, text.as_bytes()));
    }
}

proptest! {
    #[test]
    fn any_secret_in_any_bytes_in_any_chunks_leaves_no_trace(
        secret in prop::collection::vec(any::<u8>(), 8..60),
        before in prop::collection::vec(any::<u8>(), 0..40),
        cuts in prop::collection::vec(0_usize..140, 0..6),
    ) {
        let Ok(mask) = Mask::new([("S", &secret[..])]) else { return Ok(()) };
        let bytes = [&before[..], &secret, &before, &secret].concat();
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut <= bytes.len()).collect();
        cuts.sort_unstable();

        let out = in_chunks(&mask, &bytes, &cuts);

        prop_assert!(mask.contains(&bytes));
        prop_assert!(!mask.contains(&out));
        prop_assert_eq!(out, mask.mask_bytes(&bytes));
    }
}

// What happened: `printf 'user:%s' "$TOKEN" | base64` put a long token into the log.
// Why: base64 broken into lines was only looked for from the secret's first character on.
// What stops it now: a form for every place in a line at which the secret can begin.
#[test]
fn base64_of_a_text_around_a_secret_is_masked_in_lines_too() {
    let secret: String = (0..200).map(|index| char::from(b'0' + (index * 7 % 75) as u8)).collect();
    let mask = mask(&[&secret]);
    for (before, (width, end)) in (0..160).flat_map(|count| [(count, (76, "\n")), (count, (64, "\r\n"))]) {
        let text = format!("{}{secret}{}", "u".repeat(before), "v".repeat(before % 5));
        let whole = STANDARD.encode(&text);
        let lines: Vec<&str> =
            whole.as_bytes().chunks(width).map(|line| std::str::from_utf8(line).unwrap()).collect();

        let masked = String::from_utf8(mask.mask_bytes(lines.join(end).as_bytes())).unwrap();

        // At most the characters that the secret shares with what stands beside it are left.
        let shown: String =
            masked.replace("***", "").chars().filter(|char| !char.is_ascii_whitespace()).collect();
        let beside = whole.len() - STANDARD.encode(&secret).len();
        assert!(masked.contains("***") && shown.len() <= beside + 8, "{before} {width}: {masked}");
        assert_eq!(in_chunks(&mask, lines.join(end).as_bytes(), &[1, 70, 77, 80, 150]), masked.into_bytes());
    }
}
