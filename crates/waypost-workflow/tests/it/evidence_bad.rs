//! Mistakes in evidence, and what is said about them.

use crate::assert_text;
use crate::file_bad::answers;

#[test]
fn evidence_that_shows_nothing_or_is_not_understood_is_refused() {
    let step = |evidence: &str| format!("steps:\n  - run: x\n    evidence: {evidence}\n");
    let files = [
        "[]",
        "out.txt",
        "{ file: out.txt }",
        "[ out.txt ]",
        "[ {} ]",
        "[ { fil: out.txt } ]",
        "[ { magic: out.txt } ]",
        "[ { size: 3, file: out.txt } ]",
        "[ { file: '' } ]",
        "[ { file: a, typ: file } ]",
        "[ { file: a, type: folder, size: '> x' } ]",
        "[ { file: a, size: } ]",
        "[ { file: a, size: [] } ]",
        "[ { sha256: a, is: abc } ]",
        "[ { sha256: a, not: true } ]",
        "[ { sha256: a, sensitive: true } ]",
        "[ { exit: [] } ]",
        "[ { exit: [0, 300] } ]",
        "{ at_least: 3, of: [ { file: a }, { file: b } ] }",
        "{ at_least: 0, of: [ { file: a } ] }",
        "{ any: false, of: [ { file: a } ] }",
        "{ any: true, at_least: 1, of: [ { file: a } ] }",
        "{ any: true, off: [ { file: a } ] }",
        "{ at_least: 1 }",
        "[ { file: a, severity: warn } ]",
        "[ { file: a, severity: warning, at: never, within: 5, timeout: 0s } ]",
        "[ { file: a, sensitive: true, at: [commit, resume] } ]",
        "[ { file: a, metadata: x }, { file: b, metadata: { y: '${{ params.z }}' } } ]",
        "[ { file: '${{ steps.nope.outputs.x }}' }, { file: a, size: '${{ env.NO }}' } ]",
    ];
    let files: Vec<String> = files.into_iter().map(step).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    assert_text("evidence_wrong", &answers(&files));
}

#[test]
fn evidence_that_can_never_hold_is_refused() {
    let step =
        |evidence: &str| format!("allow_paths: [/tmp]\nsteps:\n  - run: x\n    evidence: {evidence}\n");
    let files = [
        "[ { file: ../x } ]",
        "[ { sha256: a/../../x } ]",
        "[ { json: /etc/x, path: $.a, value: 1 } ]",
        "[ { file: /tmpfile } ]",
        "[ { file: /tmp/x }, { file: '${{ params.x }}' } ]",
        "[ { process: serve, pid_file: /run/serve.pid } ]",
        "[ { file: x, newer_than: [y, ../z, ''] } ]",
        "[ { file: x, matches: '' }, { json: x, path: $.a, value: '~ ' } ]",
        "[ { file: 'x*', count: '>= 0' }, { file: x, lines: '>= 0' }, { sqlite: x, table: t, count: '> -1' } ]",
        "[ { file: x, mode: 0644 }, { file: x, mode: '0888' } ]",
        "[ { file: x, json: {} }, { file: x, json: { status: ok } }, { file: x, json: { $.a: [] } } ]",
        "[ { file: x, count: 3 }, { file: 'x*', count: '> many' }, { file: 'x*', count: } ]",
        "[ { file: x, lines: [1, null] } ]",
        "[ { file: 'x*', count: lots }, { file: 'x*', count: '' }, { file: 'x*', count: -1 }, { file: x, lines: '!= x' } ]",
        "[ { file: '${{ env.HOME }}', count: 2 } ]",
        "[ { json: x, path: $.a, value: '>5' }, { json: x, path: $.a, value: [1, '~^a'] }, { file: x, size: '>= 1', lines: '<3' } ]",
        "[ { file: x, json: { $.a: '=b' } }, { json: x, path: $.a, value: '>${{ env.HOME }}' } ]",
        "[ { file: x, contains: '' }, { sqlite: x, table: t, where: {} } ]",
        "[ { sqlite: x, table: t, where: { id: '> x' } }, { sqlite: x, table: t, where: { id: [] } } ]",
        "[ { sha256: x, fast: yes } ]",
        "[ { sha256: x, fast: true, is: tree:abc } ]",
        "[ { exit: [0, null] } ]",
        "[ { exit: [null] } ]",
        "[ { port: 0 }, { port: 70000 }, { port: 'host:' }, { port: 'http://localhost:8089' } ]",
        "[ { http: 'http://localhost/', status: ok }, { http: 'http://localhost/', status: [200, 2000] } ]",
        "[ { container: web, running: false, healthy: true } ]",
        "{ at_least: 2, of: [ { file: a }, { file: a, name: again, within: 5s } ] }",
        "{ any: true, of: [ { file: a }, { file: a, not: true }, { file: a, size: 1 } ] }",
        "{ at_least: 2, of: [ { file: a/b }, { file: ./a//b/. } ] }",
    ];
    let mut files: Vec<String> = files.into_iter().map(step).collect();
    files.push("allow_paths: [tmp, /a/../b, '']\nsteps: [{ run: x }]\n".to_owned());
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    assert_text("evidence_never_holds", &answers(&files));
}

#[test]
fn evidence_of_programs_that_can_never_hold_is_refused() {
    let step =
        |evidence: &str| format!("secrets: [API_TOKEN]\nsteps:\n  - run: x\n    evidence: [ {evidence} ]\n");
    let files = [
        "{ command: '' }",
        "{ command: x, exit: 300 }",
        "{ command: x, exit: many }",
        "{ command: x, exit: [0, null] }",
        "{ command: x, exit: [] }",
        "{ command: x, stdout: }",
        "{ command: x, stdout: [a, null] }",
        "{ command: x, stdout: '~ (' }",
        "{ command: x, stderr: { a: b } }",
        "{ command: x, env: { A: b } }",
        "{ command: x, env: [1A, WAYPOST_X] }",
        "{ command: x, with: { a: 1 } }",
        "{ command: 'curl -H \"$API_TOKEN\"' }",
        "{ command: 'curl ${API_TOKEN:-x}', env: [OTHER] }",
        "{ exec: x, with: [a] }",
        "{ exec: x, with: }",
        "{ exec: x, exit: 0 }",
        "{ exec: x, env: 3 }",
        "{ exec: x, env: ['${{ params.x }}'] }",
        "{ process: ./serve }",
        "{ process: serve, pid_file: '' }",
        "{ process: serve, pid_file: a.pid, count: 2 }",
        "{ process: serve, count: , user: [a], args: [x, null] }",
        "{ process: serve, count: '> many' }",
        "{ git: repo, not: true }",
        "{ git: repo, head: , clean: maybe }",
        "{ git: repo, branch: main }",
    ];
    let files: Vec<String> = files.into_iter().map(step).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    assert_text("evidence_of_programs_wrong", &answers(&files));
}
