//! What expressions mean, and what they say when they mean nothing.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use waypost_workflow::expr::{Condition, Scope, StepView, Template};

use crate::assert_text;

fn map(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => panic!("not a map: {other}"),
    }
}

/// A run with some params, two variables, a finished, a failed and a skipped step.
fn scope() -> Scope {
    let params = json!({
        "date": "2026-11-20", "count": 3, "ratio": 0.5, "on": true, "regions": ["eu", "us"],
        "tree": {"b": 1, "a": {"deep-key": "x"}}, "big": 18_446_744_073_709_551_615_u64, "n-1": "hyphen",
    });
    let mut scope = Scope::new("run-7", &map(params));
    let outputs = json!({"rows": "12", "total": 12, "ok": "true", "my-out": "hy", "none": null});
    let fetch = StepView {
        status: "completed".into(),
        exit_code: Some(0),
        stdout: Some("hello\n".into()),
        outputs: Some(map(outputs)),
        items: None,
    };
    scope.insert_step("fetch", &fetch);
    scope.insert_step("my-step", &StepView { stdout: None, ..fetch });
    let skipped =
        StepView { status: "skipped".into(), exit_code: None, stdout: None, outputs: None, items: None };
    scope.insert_step("load", &skipped);
    let env = BTreeMap::from([("DB".to_owned(), "data/sales.db".to_owned())]);
    scope.for_step("report", &env)
}

/// The rendered text, or what is wrong with it.
fn text_of(text: &str) -> String {
    match Template::parse(text) {
        Err(errors) => errors
            .iter()
            .map(|error| {
                let help = error.help.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
                let hint = error.hint.as_ref().map(|hint| format!(" [{hint}]")).unwrap_or_default();
                format!("syntax: {error} at {:?}{hint}{help}", &text[error.range.clone()])
            })
            .collect::<Vec<_>>()
            .join("; "),
        Ok(template) => match template.render(&scope()) {
            Ok(text) => text,
            Err(error) => {
                let hint = error.hint.as_ref().map(|hint| format!(" [{hint}]")).unwrap_or_default();
                format!("error: {error}{hint}")
            }
        },
    }
}

fn texts_of(texts: &[&str]) -> String {
    texts.iter().map(|text| format!("{text}\n  -> {}\n", text_of(text))).collect()
}

/// What the condition decides, or why it cannot.
fn decisions_of(conditions: &[&str]) -> String {
    let decide = |text: &&str| match Condition::parse(text) {
        Err(errors) => format!("syntax: {}", errors[0]),
        Ok(condition) => match condition.holds(&scope()) {
            Ok(answer) => answer.to_string(),
            Err(error) => format!("error: {}", error.message),
        },
    };
    conditions.iter().map(|text| format!("{text}\n  -> {}\n", decide(text))).collect()
}

#[test]
fn what_a_shell_writes_passes_untouched() {
    let shell = "echo ${X} $1 ${#a[@]} {{ x }} {% if %} {# c #} $(( 1 + 1 )) $$ ${X:-}} %} #} ${ { \\n";

    assert_eq!(text_of(shell), shell);
    assert!(Template::parse(shell).unwrap().is_plain());
}

#[test]
fn holes_are_filled() {
    assert_text(
        "expr_holes",
        &texts_of(&[
            "day ${{ params.date }}!",
            "${{params.count}}",
            "${{ params.ratio }} ${{ params.on }} ${{ params.big }}",
            "${{ params.regions }} ${{ params.tree }}",
            "${{ params.tree.a.deep-key }} ${{ params['tree']['a'][\"deep-key\"] }}",
            "${{ steps.my-step.outputs.my-out }} ${{ steps.fetch.stdout }}",
            "${{ steps.fetch.exit_code }} ${{ steps.fetch.status }} ${{ steps.load.status }}",
            "${{ env.DB }} ${{ run.id }}",
            "${{ params.count + 1 }} ${{ params.count - 1 }} ${{ params.n-1 }}",
            "${{ {'a': {'b': 1}} }}",
            "${{ '}}' }} ${{ \"it's\" }} ${{ '${{' }}",
            "${{ params.regions | join(',') }} ${{ params.regions[0] }} ${{ params.regions | length }}",
            "${{ 'a' if params.on else 'b' }} ${{ params.tree | tojson }}",
            "${{ steps.load.outputs.x | default('none', true) }}",
            "${{ params.missing | default('fallback') }} ${{ params.missing is defined }}",
            "${{ '<a> & b' }} ${{ '<a>' | tojson }}",
            "${{ [1, 'a', true, [2], null] | join('-') }} ${{ ['a', 'b'] | join }} ${{ 'aba' | replace('a', '<') }}",
            "${{ env }} ${{ params | length }} ${{ steps.fetch.outputs }}",
            "${{ fromjson('{\"a\": [1, 2.5]}').a[1] + 1 }} ${{ ('[true]' | fromJSON)[0] }} ${{ toJSON([1, 'x']) }}",
            "${{ params.date[0:4] }} ${{ params.date | replace('-', '') | int + 1 }} ${{ params.regions | first | upper }}",
        ]),
    );
}

#[test]
fn what_is_missing_is_named() {
    assert_text(
        "expr_missing",
        &texts_of(&[
            "${{ params.dat }}",
            "${{ params.tree.a.deepkey }}",
            "${{ steps.fetch.outputs.row }}",
            "${{ steps.fetch.outputs.rowz > 0 }}",
            "${{ params.missing == 1 }}",
            "${{ steps.nope.status }}",
            "${{ steps.my-step.stdout }}",
            "${{ env.PATH }}",
            "${{ steps.load.outputs.x }}",
            "${{ [params.missing] }}",
            "${{ params.missing ~ 'x' }}",
            "${{ fromjson('not json, but a long text that is cut in the message').a }}",
            "${{ fromjson(params.tree) }} ${{ fromjson('{\"a\": 1, \"a\": 2}') }} ${{ fromjson(params.missing) }}",
            "${{ 'x' in params.missing }}",
            "${{ params.missing and true }}",
            "${{ params.date.year }}",
            "${{ params.date > 5 }}",
            "${{ params.regions > 5 }}",
            "${{ params.date + 1 }}",
            "${{ 1 / 0 }}",
            "${{ range(1000000) }}",
            "${{ params.date.upper() }}",
            "${{ 'x' * 1000000 }}",
            "${{ range(100000) | list | join(range(100000) | join) }}",
            "${{ params.date | join }} ${{ params.missing | join }}",
            "${{ range(90000) | map('string') | join | length + (range(90000) | list | length) }}",
        ]),
    );
}

#[test]
fn what_is_not_an_expression_is_refused() {
    assert_text(
        "expr_refused",
        &texts_of(&[
            "${{ }}",
            "a ${{ params.date",
            "${{ 'open }}",
            "${{ parms.date }}",
            "${{ steps }}",
            "${{ steps.fetch }}",
            "${{ steps.fetch.output.x }}",
            "${{ steps[params.date].status }}",
            "${{ steps.fetch.items }}",
            "${{ run }}",
            "${{ run.ID }}",
            "${{ item }}",
            "${{ $HOME }}",
            "${{ params.count = 1 }}",
            "${{ params.count => 1 }}",
            "${{ params.count =< 1 }}",
            "${{ params.count =! 1 }}",
            "${{ 1 < params.count < 5 }}",
            "${{ params.count == }}",
            "${{ params.count ++ }}",
            "${{ (params.count }}",
            "${{ params.date | upcase }}",
            "${{ params.date is startswith('a') }}",
            "${{ contains(params.date, 'x') }}",
            "${{ skipped() }}",
            "${{ always(1) }}",
            "${{ 5m }}",
            "${{ a & b }}",
            "${{ params.x @ 1 }}",
            "${{ include('x') }}",
            "${{ params.date }} ${{ nope }} ${{ }}",
            "${{ {% if x %} }}",
            "${{ params.count 5 }}",
        ]),
    );
}

#[test]
fn conditions_decide() {
    assert_text(
        "expr_conditions",
        &decisions_of(&[
            "true",
            "!true",
            "params.on && !false",
            "params.on and not (params.count > 3 || false)",
            "${{ params.on }}",
            "steps.fetch.outputs.rows > 0",
            "steps.fetch.outputs.rows == 12",
            "steps.fetch.outputs.rows == '12'",
            "steps.fetch.outputs.total == '12'",
            "'9' > 10",
            "10 > '9'",
            "steps.fetch.outputs.ok == true",
            "params.date == 5",
            "params.date != 5",
            "steps.load.outputs.rows == null",
            "steps.fetch.outputs.rows != null",
            "steps.fetch.outputs.none == none",
            "skipped(load) && !skipped(fetch)",
            "skipped('load')",
            "skipped(my-step)",
            "always()",
            "'&& || !' == '&& || !'",
            "params.regions == ['eu', 'us']",
            "'eu' in params.regions",
            "'eu' not in params.regions",
            "params.missing is not defined == true",
            "(1 == 1) == true",
            "params.count >= 3 && params.count <= 3",
            "params.count == 3.0",
            "params.tree.a['deep-key'] == 'x'",
            "steps.my-step.exit_code == 0",
            "params.date",
            "params.count",
            "steps.fetch.outputs.ok",
            "steps.load.outputs.rows > 0",
            "text ${{ params.on }}",
            "${{ params.on }}${{ params.on }}",
            "1 == 1 == true",
            "a == !b",
            "",
            "true }}",
        ]),
    );
}

#[test]
fn a_lone_hole_keeps_its_type() {
    let value = |text: &str| Template::parse(text).unwrap().evaluate(&scope()).unwrap();

    assert_eq!(value("${{ params.regions }}"), json!(["eu", "us"]));
    assert_eq!(value("${{ params.count }}"), json!(3));
    assert_eq!(value("${{ params.big }}"), json!(18_446_744_073_709_551_615_u64));
    assert_eq!(value("${{ steps.load.outputs.x }}"), Value::Null);
    assert_eq!(value(" ${{ params.count }}"), json!(" 3"));
}

#[test]
fn conditions_say_what_they_wait_for() {
    let condition = Condition::parse("always() || skipped(load)").unwrap();
    let plain = Condition::parse("skipped(load) || params.on").unwrap();

    assert!(condition.considers_skipped("anything"));
    assert!(plain.considers_skipped("load") && !plain.considers_skipped("fetch"));
}

#[test]
fn conditions_say_whether_they_ask_for_failures() {
    let asks = |text: &str| Condition::parse(text).unwrap().asks_for_failures();

    assert!(["always()", "failure()", "!success() && params.on"].into_iter().all(asks));
    assert!(!asks("params.on") && !asks("skipped(load)"));
}

#[test]
fn cancelled_is_refused_with_its_reason() {
    let errors = Condition::parse("cancelled()").unwrap_err();

    assert_eq!(errors.len(), 1);
    let help = errors[0].help.as_ref().unwrap();
    assert!(help.starts_with("no step runs after Ctrl-C, a stop, a timeout or an exceeded budget"), "{help}");
}

#[test]
fn deep_nesting_is_an_error_and_not_a_crash() {
    // As many as fit into one expression, and more: minijinja's parser and compiler are recursive.
    let many = |size: usize, open: &str, middle: &str, close: &str| {
        let count = size / (open.len() + close.len());
        format!("${{{{ {}{middle}{} }}}}", open.repeat(count), close.repeat(count))
    };
    let texts = |size: usize| {
        [
            many(size, "(", "1", ")"),
            many(size, "[", "1", "]"),
            many(size, "{'a':", "1", "}"),
            many(size, "!", "true", ""),
            many(size, "not ", "true", ""),
            many(size, "-", "1", ""),
            many(size, "", "1", "+1"),
            many(size, "", "'a'", "~1"),
            many(size, "", "1", "**1"),
            many(size, "", "true", "&&true"),
            many(size, "", "params", ".a"),
            many(size, "", "params", "[0]"),
            many(size, "", "params", "|d"),
            many(size, "", "1", " is odd"),
            many(size, "1 if true else ", "1", ""),
            many(size, "(1==", "1", ")"),
            many(size, "range(", "1", ")"),
        ]
    };
    for size in [500, 1_000, 2_000, 4_000, 100_000] {
        for text in texts(size) {
            let _ = text_of(&text);
        }
    }
    assert!(text_of(&many(900, "(", "1", "))")).starts_with("syntax:"));
}

#[test]
fn long_expressions_are_refused() {
    let text = format!("${{{{ [{}] }}}}", "1,".repeat(1_000));

    assert!(text_of(&text).starts_with("syntax: the expression has more than 1000 tokens"));
}

// What happened: `steps.a.exit_code == null` failed the run where step `a` had timed out and that was tolerated.
// Why: a step without an exit code did not have the name either.
// What stops it now: every step that has ended has it, null where there is none.
#[test]
fn the_exit_code_of_a_step_that_has_none_is_null() {
    let mut scope = Scope::new("run-7", &Map::new());
    let timed_out = StepView {
        status: "failed".into(),
        exit_code: None,
        stdout: None,
        outputs: Some(Map::new()),
        items: None,
    };
    scope.insert_step("late", &timed_out);
    let holds = |text: &str| Condition::parse(text).unwrap().holds(&scope).unwrap();

    assert!(holds("steps.late.exit_code == null"));
    assert!(holds("steps.late.exit_code != 0"));
    assert!(!holds("steps.late.exit_code == 0"));
}

/// A scope with a text of 10 MB, a list of 100,000 numbers, and a number.
fn large() -> Scope {
    let many: Vec<u32> = (0..100_000).collect();
    let params = map(json!({ "text": "a b\n \n".repeat(1_700_000), "many": many, "n": 3 }));
    Scope::new("report", &params)
}

// Bug: an expression of a few characters took gigabytes and minutes. Cause: `*` repeated lists and texts, and filters
// copied the repetitions. Fix: `*` takes numbers only, and filters, `+`, `~` and comparisons share a budget of bytes.
#[test]
fn a_short_expression_cannot_take_much_memory_or_time() {
    let (scope, texts) = (large(), ["params.text"; 100]);
    for (text, why) in [
        ("[[1]*10000]*10000".to_owned(), "multiplies numbers"),
        ("('a'*100000000) | upper | length".to_owned(), "multiplies numbers"),
        ("(3 * 'x') | length".to_owned(), "multiplies numbers"),
        ("2 * params.n * params.text".to_owned(), "multiplies numbers"),
        ("params.many[0] * params.many".to_owned(), "multiplies numbers"),
        ("(params.text | upper) * 2 == 1".to_owned(), "multiplies numbers"),
        (
            "params.many | map('string') | map('list') | sum(start=[]) | length".to_owned(),
            "`sum` adds numbers",
        ),
        ("params.many | sum(none, '')".to_owned(), "`sum` adds numbers"),
        (texts.join(" ~ "), "it reads more than"),
        (texts.join(" + "), "it reads more than"),
        (format!("[{}] == [{}]", texts.join(", "), texts.join(", ")), "it reads more than"),
        (format!("[{0}] | map('upper') | list | length", texts.join(", ")), "it reads more than"),
        (
            "params.many | map('string') | map('replace', '', params.text) | list | length".to_owned(),
            "more than",
        ),
        (
            "params.many | map(attribute='z') | map('default', params.text) | map('lower') | list | length"
                .to_owned(),
            "it reads more than",
        ),
        (format!("[{}]", texts.join(", ")), "larger than 67108864 bytes"),
        ("params.text | split".to_owned(), "`split` accepts texts of at most 8388608 bytes"),
        ("params.text | list | length".to_owned(), "`list` accepts texts of at most 8388608 bytes"),
        ("params.text | lines | length".to_owned(), "`lines` accepts texts of at most 8388608 bytes"),
    ] {
        let error = Template::parse(&format!("${{{{ {text} }}}}")).unwrap().evaluate(&scope).unwrap_err();
        assert!(format!("{error:?}").contains(why), "{text}: {error:?}");
    }
}

#[test]
fn limits_leave_the_values_of_expressions_as_they_are() {
    let scope = large();
    for (text, expect) in [
        ("'a b c' | split | length", json!(3)),
        ("2 * params.n * -2 + 1", json!(-11)),
        ("-params.n * (params.n + 1)", json!(-12)),
        ("params.n * params.many[2] ** 2", json!(12)),
        ("params.many | map('string') | join | length", json!(488_890)),
        ("params.many | select('even') | list | length * 2", json!(100_000)),
        ("[1, 2] | sum + ([1, 2] | sum(start=4)) + ([{'a': 5}] | sum(attribute='a', start=1))", json!(16)),
        ("'a' ~ params.n ~ ('b' | upper) ~ -1", json!("a3B-1")),
        ("[1] + params.many[:2] | list", json!([1, 0, 1])),
        ("{'a': 1 + 1, 'b': [2 * 2]}", json!({"a": 2, "b": [4]})),
        ("(params.text | length) > 5 and params.n + 1 == 4", json!(true)),
        ("'x' if params.n * 2 > 5 else 'y'", json!("x")),
        ("params.missing | default('d') ~ 'e'", json!("de")),
    ] {
        let value = Template::parse(&format!("${{{{ {text} }}}}")).unwrap().evaluate(&scope);
        assert_eq!(value.unwrap_or_else(|error| panic!("{text}: {error:?}")), expect, "{text}");
    }
}
