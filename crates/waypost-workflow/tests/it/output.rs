//! Outputs that steps write, captured output, and JSON paths.

use serde_json::{Value, json};
use waypost_workflow::output::{
    CAPTURE_BYTES_MAX, Capture, JsonPath, OUTPUT_BYTES_MAX, OUTPUT_COUNT_MAX, Written, parse_output_file,
    value_at, value_in,
};

use crate::assert_text;

fn outputs_of(bytes: &[u8]) -> String {
    match parse_output_file(bytes) {
        Ok(Written { outputs, usage: None }) => Value::Object(outputs).to_string(),
        Ok(Written { outputs, usage: Some(usage) }) => format!("{} {usage:?}", Value::Object(outputs)),
        Err(error) => format!("error: {error}"),
    }
}

#[test]
fn output_files_are_read_line_by_line() {
    let files: [&[u8]; 24] = [
        b"",
        b"\n\n",
        b"rows=12\n",
        b"rows=12",
        b"a=1\nb=2\na=3\n",
        b"a=\n",
        b"a=b=c\n",
        b"a= padded \n",
        b"a=<<EOF\n",
        b"text<<EOF\none\n two\n\nEOF\nafter=1\n",
        b"empty<<EOF\nEOF\n",
        b"a<<X=Y\nb=c\nX=Y\n",
        b"a=1\r\nb<<EOF\r\nx\r\ny\r\nEOF\r\n",
        b"my-out=1\n_x=2\n",
        "a=caf\u{e9} \u{65e5}\n".as_bytes(),
        b"text<<EOF\none\n",
        b"text<<\none\n",
        b"just words\n",
        b"=x\n",
        b"a b=x\n",
        b"9a=x\n",
        b"ok=1\nbad=\xff\n",
        b"usage.tokens_in=5\n",
        b"a=1\n\x1b[31m\n",
    ];

    let answers = files.map(|file| format!("{:?}\n  -> {}", String::from_utf8_lossy(file), outputs_of(file)));
    assert_text("output_files", &answers.join("\n"));
}

#[test]
fn output_files_have_limits() {
    let large = vec![b'a'; OUTPUT_BYTES_MAX + 1];
    let many: String = (0..=OUTPUT_COUNT_MAX).map(|index| format!("a{index}=x\n")).collect();
    let long_name = format!("{}=x\n", "a".repeat(101));
    let most: String = (0..OUTPUT_COUNT_MAX).map(|index| format!("a{index}=x\n")).collect();

    assert_eq!(outputs_of(&large), "error: the output file has 1048577 bytes, the maximum is 1048576");
    assert_eq!(outputs_of(many.as_bytes()), "error: line 1001: more than 1000 outputs");
    assert!(outputs_of(long_name.as_bytes()).starts_with("error: line 1: `aaaa"));
    assert_eq!(
        parse_output_file(format!("{most}a0=y\n").as_bytes()).unwrap().outputs.len(),
        OUTPUT_COUNT_MAX
    );
}

#[test]
fn captured_output_is_converted() {
    let capture = |kind: Capture, stdout: &[u8]| match kind.convert(stdout) {
        Ok(value) => value.to_string(),
        Err(error) => format!("error: {error}"),
    };
    let cases: [(Capture, &[u8]); 19] = [
        (Capture::Text, b"hello\n"),
        (Capture::Text, b"a\n\n"),
        (Capture::Text, b"a\r\n"),
        (Capture::Text, b""),
        (Capture::Text, b"\xff"),
        (Capture::Json, b"{\"b\": 1, \"a\": [1.50, null]}\n"),
        (Capture::Json, b""),
        (Capture::Json, b"{\n \"a\": }\n"),
        (Capture::Json, b"1 2"),
        (Capture::Lines, b"a\nb\n\nc"),
        (Capture::Lines, b""),
        (Capture::Lines, b"a\r\nb\r\n"),
        (Capture::Number, b"42\n"),
        (Capture::Number, b" -1.5e3 \n"),
        (Capture::Number, b""),
        (Capture::Number, b"NaN"),
        (Capture::Number, b"1 2"),
        (Capture::Number, b"inf"),
        (Capture::Number, b"18446744073709551615\n"),
    ];

    let answers = cases.map(|(kind, stdout)| {
        format!("{} {:?}\n  -> {}", kind.as_str(), String::from_utf8_lossy(stdout), capture(kind, stdout))
    });
    assert_text("captured", &answers.join("\n"));
    assert!(Capture::Text.convert(&vec![b'a'; CAPTURE_BYTES_MAX + 1]).is_err());
}

#[test]
fn what_json_would_change_is_refused() {
    // What happened: `12345678901234567890123` in captured JSON became 1.2345678901234568e22, without a word.
    // Why: a JSON reader takes the nearest number that it has, and the last of two values with one key.
    // What stops it now: both are errors that name the place.
    let json = |text: &str| match Capture::Json.convert(text.as_bytes()) {
        Ok(value) => value.to_string(),
        Err(error) => format!("error: {error}"),
    };
    let number = |text: &str| match Capture::Number.convert(text.as_bytes()) {
        Ok(value) => value.to_string(),
        Err(error) => format!("error: {error}"),
    };
    let kept = [
        "0",
        "-1",
        "1.50",
        "1e3",
        "18446744073709551615",
        "-9223372036854775808",
        "0.1",
        "1.7976931348623157e308",
        "-0.0",
        "0.0",
        "5e-324",
        "100e-2",
        "123456789012345680000.0",
    ];
    let changed = [
        "18446744073709551616",
        "-9223372036854775809",
        "-0",
        "1e-400",
        "0.1000000000000000055",
        "12345678901234567890.0",
        "1e400",
    ];

    for text in kept {
        let value: f64 = text.parse().unwrap();
        assert_eq!(json(text).parse::<f64>().unwrap(), value, "{text}");
        if !["1e3", "100e-2", "123456789012345680000.0"].contains(&text) {
            assert_eq!(number(text).parse::<f64>().unwrap(), value, "{text}");
        }
    }
    // What happened: `capture: number` made 7 of `007`, and `1000.0` of `1e3`.
    // Why: only values were compared, and a step that reads them is given a text.
    // What stops it now: a number is refused whose text has zeros before it, or would come back with or without an exponent.
    for text in ["007", "-01.5", "1e3", "100e-2", "123456789012345680000.0"] {
        let refused = format!("error: cannot keep the number `{text}` on stdout exactly");
        assert!(number(text).starts_with(&refused), "{text}: {}", number(text));
    }
    for text in changed {
        assert!(json(text).starts_with("error: "), "{text}: {}", json(text));
        assert!(number(text).starts_with("error: cannot keep the number `"), "{text}: {}", number(text));
        assert_eq!(json(&format!("\"{text}\"")), format!("\"{text}\""), "a text is a text");
    }
    assert_eq!(
        json("{\n  \"a\\\"1\": [1, 12345678901234567890123]}"),
        "error: stdout is not valid JSON: cannot keep the number `12345678901234567890123` exactly; write the number as \
         text at line 2, column 15"
    );
    assert_eq!(
        json("[{\"a\": 1, \"b\": {\"a\": 1}, \"a\": 2}]"),
        "error: stdout is not valid JSON: duplicate key `a` in a map at line 1, column 28"
    );
    assert!(value_in(&JsonPath::parse("$.b").unwrap(), b"{\"a\": 1e-999, \"b\": 1}").is_err());
}

#[test]
fn json_paths_find_what_they_name() {
    let document = json!({
        "meta": {"count": 3, "a.b": true, "it's": 1}, "items": [{"id": "x"}, {"id": "y"}], "empty": [], "null": null,
        "\u{65e5}": 1,
    });
    let find = |path: &str| match JsonPath::parse(path) {
        Err(error) => format!("syntax: {error} at {:?}", &path[error.range.clone()]),
        Ok(parsed) => match value_at(&parsed, &document) {
            Ok(value) => value.to_string(),
            Err(error) => format!("error: {error}"),
        },
    };
    let paths = [
        "$.meta.count",
        "$['meta']['count']",
        "$.meta['a.b']",
        "$.meta[\"it's\"]",
        "$.items[0].id",
        "$.items[-1].id",
        "$.items[*].id",
        "$.items[*]",
        "$.empty[*]",
        "$.meta.*",
        "$.null",
        "$.\u{65e5}",
        "$.meta.cuont",
        "$.nope.x",
        "$.items[5]",
        "$.items[-3]",
        "$.items.id",
        "$.meta[0]",
        "$.null.x",
        "$.items[*].name",
        "meta",
        "",
        "$.",
        "$..a",
        "$.a b",
        "$[",
        "$['a",
        "$['a'",
        "$[a]",
        "$[1:2]",
        "$[?(@.a)]",
        "$x",
        "$[99999999999999999999]",
        "$.items[*",
    ];

    let answers = paths.map(|path| format!("{path}\n  -> {}", find(path)));
    assert_text("json_paths", &answers.join("\n"));
    assert_eq!(JsonPath::parse("$").unwrap().find(&document).unwrap(), document);
}
