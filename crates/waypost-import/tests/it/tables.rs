//! What each construct of Prodigy becomes, and which differences are notes.

use crate::table;

#[test]
fn steps_become_steps() {
    let cases = [
        (
            "a bare list",
            "- shell: make\n- claude: /review $ARG\n- cargo-fix\n- {name: tidy, args: [all, $ARG], options: {x: 1}, \
             metadata: {retries: 2, timeout: 60, continue_on_error: true, env: {A: b}, commit_required: true}}\n",
        ),
        (
            "keys of a step",
            r#"
name: keys
description: All of them
commands:
  - id: build it
    name: Build
    shell: cd src && make
    env: {MODE: fast, WHO: "${NAME}", LIST: [1]}
    working_dir: ${env.PLACE}
    timeout: 90
    temporary: true
    allow_failure: true
    commit_required: true
    auto_commit: true
    clear_env: true
    output_file: out.txt
    surprise: 1
  - shell: "true"
    timeout: 2 minutes
  - shell: "true"
    timeout: soon
env: {NAME: me, PLACE: sub}
mode: sequential
"#,
        ),
        (
            "retries",
            r#"
- shell: a
  retry: {attempts: 5, backoff: fixed, initial_delay: 2s, max_delay: 1m, jitter: true, jitter_factor: 0.2}
- shell: b
  retry: {backoff: {linear: {increment: 5s}}, retry_on: [timeout], retry_budget: 10m, on_failure: stop}
- shell: c
  retry: {attempts: 2, backoff: fibonacci, initial_delay: later, retry_on: [network]}
- shell: d
  retry: {attempts: 1}
- shell: e
  retry: many
"#,
        ),
        (
            "files that are written",
            r#"
commands:
  - write_file:
      {path: "out/${NAME}.json", content: "{\"a\": \"${NAME}\"}\n", format: json, mode: "0600", create_dirs: true}
  - write_file:
      path: plain.txt
      content: |
        two
        lines
      mode: "0644"
      owner: me
env: {NAME: x}
"#,
        ),
        (
            "steps without an equivalent",
            r#"
- analyze: {max_cache_age: 300, save: true}
- goal_seek: {goal: all green, claude: /fix, validate: "true", threshold: 90, max_attempts: 3}
- handler: {name: git, attributes: {op: push}}
- shell: make
  validate: {shell: ./check.sh, threshold: 90, on_incomplete: {claude: /go-on}}
  step_validate: "true"
  analysis: {force_refresh: true}
- 5
- [1]
- {id: nothing, description: does nothing}
"#,
        ),
        ("nothing is left", "commands: [{analyze: {save: true}}]\n"),
    ];
    table("steps", &cases);
}

#[test]
fn commands_get_variables_and_prompts_get_their_values() {
    let cases = [
        (
            "what was captured",
            r#"
- {id: info, shell: ./info.sh, capture: data, capture_format: json}
- {shell: ls, capture_output: "files", capture_format: lines}
- {shell: wc -l x, capture: count, capture_format: number}
- {shell: test -e ok && echo true, capture: ok, capture_format: boolean, capture_streams: both}
- {shell: date, capture: "day", capture_format: odd}
- {shell: uptime, capture_output: true}
- shell: echo ${data.name} ${data.list[0].id} $count "$files" ${ok} ${data.success} ${data.exit_code} ${data.stderr}
- shell: echo ${shell.output} ${last.output} ${last.exit_code} ${info.output} ${step.info.output} ${day|length}
- claude: /tell ${data} of ${claude.output|default:nobody} and ${count:-0}
- claude: /more ${claude.output} ${last.output} ${workflow.name} ${workflow.id} ${item} $SPEC ${merge.source_branch}
"#,
        ),
        (
            "quotes",
            r#"
- {shell: ./name.sh, capture: name}
- shell: |
    echo ${name} "${name}!" 'it is ${name}' "$(basename ${name})" $((${name} + 1)) # ${name}
    NAME_LENGTH=${#NAME} NAME=other; for i in $NAME; do echo "$i ${i%.txt} \${name}"; done
    cat <<END
    ${name} and '${name}' ${NAME:-none}
    END
- shell: |
    cat <<'END'
    ${name} ${PLACE} ${env.HOME} $HOME ${{ x }}
    END
    awk '{print $1}' '${PLACE}/${name}' "${PLACE}" ${env.HOME} "${env:HOME}" '${env.HOME}'
"#,
        ),
        (
            "what is worked out",
            r#"
- shell: echo ${cmd:git rev-parse HEAD} "${file:VERSION}" '${date:%Y-%m-%d}' ${uuid}
- claude: /x ${cmd:uname} ${env.HOME} ${file:VERSION} ${json:$.a:from:b}
"#,
        ),
        (
            "variables of the file",
            r#"
commands:
  - {name: one, shell: "echo $MODE ${MODE} '${MODE}' $CORES $TOKEN $WHERE"}
  - {name: two, claude: "/do $MODE ${MODE} ${env.MODE} $CORES $TOKEN"}
env:
  MODE: fast
  CORES: {command: "nproc || echo 1", cache: true}
  WHERE: {condition: "${branch} == 'main'", when_true: a, when_false: b}
  KEY: {secret: true, value: "${OTHER_KEY}"}
  PATHS: "$HOME/x"
  WAYPOST_X: taken
secrets:
  TOKEN: "${env:TOKEN}"
  PASSWORD: {provider: vault, key: a/b}
  PIN: {provider: env, key: THE_PIN}
  MODE: twice
env_files: [.env]
profiles: {dev: {MODE: slow}}
merge: [{shell: git merge}]
retry_defaults: {attempts: 2}
error_policy: {on_item_failure: stop}
odd: [1, 2]
"#,
        ),
        (
            "conditions",
            r#"
- {shell: "true", capture: ok, capture_format: boolean}
- {shell: "true", capture: n, capture_format: number}
- {id: s, shell: "true", capture: text}
- {shell: "true", capture: j, capture_format: json}
- {shell: a, when: "${ok}"}
- {shell: b, when: "${n}"}
- {shell: c, when: "${text}"}
- {shell: d, when: "${text} == 'yes' && ${n} >= 5 || !${ok}"}
- {shell: e, when: "(${j.a.b} != \"x\") and not ${s.success}"}
- {shell: f, when: "true", capture: f}
- {shell: g, when: "${f} == 'x' && ${f.exit_code} == 0"}
- {shell: h, when: "exists(${ok})"}
- {shell: i, when: "${unknown} > 1"}
- {shell: k, when: "ok == true"}
- {shell: l, when: "$ARG == 'x'"}
"#,
        ),
        (
            "files of commits",
            r#"
- claude: /plan
  id: plan
  outputs: {spec: {file_pattern: "*-plan.md"}, other: {x: 1}}
- claude: /implement ${plan.spec}
"#,
        ),
    ];
    table("variables", &cases);
}

#[test]
fn what_follows_a_step_follows_it() {
    let cases = [
        (
            "a failure that is mended, and tried again",
            r#"
- shell: make test
  capture_output: log
  on_failure: {claude: "/fix ${shell.output} ${log}", max_attempts: 2, fail_workflow: true, commit_required: true}
- shell: make lint
  on_failure: {claude: /lint}
- shell: echo "${log}"
"#,
        ),
        (
            "other forms of it",
            r#"
- {shell: a, on_failure: true}
- {shell: b, on_failure: false}
- {shell: c, on_failure: ./clean.sh}
- {shell: d, on_failure: [/mend, "echo ${shell.output}", {shell: x, timeout: 5}]}
- shell: e
  on_failure:
    commands: [{shell: f}, {claude: /g, continue_on_error: true}]
    fail_workflow: true
    strategy: cleanup
    timeout: 5
- {shell: h, on_failure: {fail_workflow: false}}
- {shell: i, on_failure: {shell: j, max_attempts: 0, fail_workflow: true}}
- {test: {command: make test, on_failure: {claude: /debug, max_attempts: 1}}}
- {shell: k, on_failure: {analyze: {}}}
- {shell: l, fail_workflow: false}
"#,
        ),
        (
            "success and exit codes",
            r#"
- shell: a
  capture: out
  on_success: {shell: "echo ${out}", on_success: {claude: /tell}}
  on_exit_code: {0: {shell: b}, 3: {claude: "/why ${out}"}, 300: {shell: c}, 4: {analyze: {}}}
"#,
        ),
    ];
    table("after", &cases);
}

#[test]
fn items_become_items() {
    let cases = [
        (
            "all of a map-reduce workflow",
            r#"
name: all
mode: mapreduce
env: {MAX: "3", DIR: data}
setup:
  timeout: 600
  commands:
    - {shell: ./list.sh > data/items.json}
    - {id: head, shell: git rev-parse HEAD}
    - {shell: ./info.sh}
  capture_outputs:
    first: 0
    commit: {command_index: 1, source: stdout, pattern: "^(.*)$"}
    rows: {command_index: 2, json_path: $.rows}
    none: 9
map:
  input: ${DIR}/items.json
  json_path: $.items[*]
  filter: "severity == 'high' OR (score >= 10 AND !is_null(owner.name)) || name in ['a', 'b']"
  sort_by: owner.rank ASC, score DESC NULLS FIRST
  distinct: name
  offset: 1
  max_items: 20
  max_parallel: ${MAX}
  agent_timeout_secs: 300
  timeout_config: {command_timeouts: {shell: 60, other: 1}, timeout_policy: Hybrid, cleanup_grace_period_secs: 5}
  agent_template:
    - {claude: "/fix ${item.file} of ${item.owner.name} for ${commit} ${item_id} ${item_total}", capture: report}
    - {shell: "test -s '${item.file}' && echo ${item_index} ${rows[0].id} ${report}", commit_required: true}
reduce:
  - claude: /sum ${map.total} ${map.successful} ${map.failed}
  - write_file: {path: r.json, content: "${map.results}"}
  - shell: echo ${map.results[0].output} ${map.key|default:none} $commit ${rows}
error_policy:
  on_item_failure: dlq
  continue_on_failure: true
  max_failures: 4
  failure_threshold: 0.25
  circuit_breaker: {failure_threshold: 3, timeout: 30s, half_open_requests: 1}
  error_collection: immediate
  retry_config: {max_attempts: 2}
  odd: 1
merge: {commands: [{shell: git merge}]}
"#,
        ),
        (
            "lines of a command, and the nested form",
            r#"
name: lines
map:
  input: "find . -name '*.rs' | head -${COUNT}"
  agent_template: {commands: [{shell: "wc -l ${item} ${item.path}"}]}
reduce: {commands: [{shell: "echo ${map.total}"}]}
on_item_failure: stop
max_failures: 3
"#,
        ),
        (
            "JSON of a command, one failure, and conditions that are not understood",
            r#"
name: json
setup: [{shell: "./count.sh", capture: count}]
map:
  input: ./items.sh --all ${count}
  filter: path matches '\.rs$' && matches(name, '^x') && contains(tags, 'a') && length(name, 3)
  sort_by: first name
  distinct: "a b"
  max_items: 0
  max_parallel: many
  agent_template: [{shell: "echo ${item.id} ${count}"}, {analyze: {}}]
continue_on_failure: false
"#,
        ),
        (
            "other actions",
            "map: {input: a.json, agent_template: [{analyze: {}}], filter: name =~ 'a.*b', json_path: '$..x'}\n\
             on_item_failure: retry\nmax_failures: x\nfailure_threshold: 3\n",
        ),
        (
            "foreach",
            r#"
- foreach:
    {foreach: [a, b], parallel: 3, continue_on_error: true, max_items: 5, do: [{shell: "echo ${item} ${index}"}], odd: 1}
- foreach: ls ${ARG}
  do:
    - shell: echo ${item}
    - foreach: {foreach: "ls ${item}", parallel: true, do: [{shell: "echo '${item}'"}]}
"#,
        ),
    ];
    table("items", &cases);
}
