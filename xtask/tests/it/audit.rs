//! The steps of `examples/audit`, each by itself, on crates made for the test.
//!
//! Whole runs through `waypost` are tested with the command; here it is about what the steps find.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/audit").canonicalize().unwrap()
}

/// A folder with crates to audit, and the results of the steps that ran.
struct Audit {
    dir: TempDir,
    rows: Vec<String>,
    env: BTreeMap<String, String>,
}

impl Audit {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let env = [
            ("AUDIT_OUT", path("out")),
            ("WAYPOST_OUTPUT", path("output")),
            ("WAYPOST_SUMMARY", path("summary")),
            ("CRATES", path("out/crates.tsv")),
            ("CODE", path("out/code")),
        ];
        fs::create_dir(dir.path().join("out")).unwrap();
        Self { rows: Vec::new(), env: env.map(|(name, value)| (name.to_owned(), value)).into(), dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file and the folders above it.
    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> &Self {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
        self
    }

    /// Adds a published crate with a licence and files to the table of crates.
    fn published(&mut self, name: &str, licence: &str, files: &[(&str, &[u8])]) -> &mut Self {
        let folder = format!("home/registry/src/index/{name}-1.0.0");
        self.write(&format!("{folder}/Cargo.toml"), format!("[package]\nname = \"{name}\"\n"));
        for (file, bytes) in files {
            self.write(&format!("{folder}/{file}"), bytes);
        }
        let script = self.path(&folder).join("build.rs");
        let script = if script.exists() { script.display().to_string() } else { "-".to_owned() };
        let folder = self.path(&folder).display().to_string();
        self.rows.push([name, "1.0.0", "registry", &folder, licence, "-", &script, "no", "-"].join("\t"));
        self.write("out/crates.tsv", self.rows.join("\n") + "\n");
        self
    }

    fn set(&mut self, name: &str, value: &str) -> &mut Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Runs a step as a workflow would, with fresh files for outputs and summary.
    fn try_step(&self, name: &str) -> Output {
        self.write("output", "").write("summary", "");
        Command::new("bash")
            .args(["-euo", "pipefail", "-c", &format!("./steps/{name}.sh")])
            .current_dir(example())
            .envs(&self.env)
            .output()
            .unwrap()
    }

    /// Runs a step that must succeed; gives its outputs.
    fn step(&self, name: &str) -> BTreeMap<String, String> {
        let output = self.try_step(name);
        assert!(output.status.success(), "{name}: {output:#?}");
        let text = fs::read_to_string(self.path("output")).unwrap();
        text.lines()
            .map(|line| line.split_once('=').unwrap())
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect()
    }

    /// Runs the step that is done for each crate; says whether it succeeded for all of them.
    fn hash_each(&mut self) -> bool {
        let listed = self.try_step("each");
        let crates: Vec<BTreeMap<String, String>> = serde_json::from_slice(&listed.stdout).unwrap();
        assert_eq!(crates.len(), self.rows.len(), "{listed:?}");
        let mut all = true;
        for one in crates {
            for (name, value) in one {
                self.set(&name.to_uppercase(), &value);
            }
            all &= self.try_step("hash").status.success();
        }
        self.set("FAILED", "0");
        all
    }

    /// The lines of a table that a step left.
    fn table(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path("out").join(name)).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

#[test]
fn the_workflow_uses_only_outputs_that_its_steps_give() {
    let workflow = fs::read_to_string(example().join("waypost.yaml")).unwrap();
    let mut script = BTreeMap::new();
    let mut id = "";
    for line in workflow.lines() {
        if let Some(name) = line.trim().strip_prefix("- id: ") {
            id = name;
        }
        if let Some(path) = line.trim().strip_prefix("run: ") {
            script.insert(id, fs::read_to_string(example().join(path)).unwrap());
        }
    }

    let mut uses = 0;
    for (at, _) in workflow.match_indices("${{ steps.") {
        let (used, _) = workflow[at + 10..].split_once(' ').unwrap();
        // What became of items every such step tells.
        let Some((step, output)) = used.split_once(".outputs.") else { continue };
        let text = &script[step];
        let given = ["output ", "output_file "].iter().any(|how| text.contains(&format!("\n{how}{output} ")));
        let given = given || (output == "section" && text.contains("section "));
        assert!(given, "step `{step}` gives no output `{output}`");
        uses += 1;
    }

    assert!(uses > 30, "the test found only {uses} uses");
}

#[test]
fn crates_of_a_project_come_from_cargo_metadata() {
    let mut audit = Audit::new();
    audit
        .write("project/Cargo.toml", "[package]\nname = \"top\"\nversion = \"0.1.0\"\nedition = \"2021\"\nlicense = \"MIT\"\n[dependencies]\nlow = { path = \"low\" }\n")
        .write("project/src/lib.rs", "")
        .write("project/low/Cargo.toml", "[package]\nname = \"low\"\nversion = \"0.2.0\"\nedition = \"2021\"\ndescription = \"a \\\"quoted\\\" {thing}, [really]: yes\"\n")
        .write("project/low/src/lib.rs", "")
        .write("project/low/build.rs", "fn main() {}")
        .write("project/Cargo.lock", "version = 4\n\n[[package]]\nname = \"low\"\nversion = \"0.2.0\"\n\n[[package]]\nname = \"top\"\nversion = \"0.1.0\"\ndependencies = [\n \"low\",\n]\n");
    let project = audit.path("project").canonicalize().unwrap();
    audit.set("PROJECT", project.to_str().unwrap());

    let outputs = audit.step("crates");

    let root = project.display();
    assert_eq!(
        audit.table("crates.tsv"),
        [
            format!("low\t0.2.0\tlocal\t{root}/low\t-\t-\t{root}/low/build.rs\tno\t-"),
            format!("top\t0.1.0\tlocal\t{root}\tMIT\t-\t-\tno\t-"),
        ]
    );
    assert_eq!(audit.table("lock.tsv"), ["low\t0.2.0\t-\t-\t-", "top\t0.1.0\t-\t-\tlow"]);
    assert_eq!(outputs["count"], "2");
}

#[test]
fn crates_come_from_the_lock_when_cargo_would_need_the_network() {
    let mut audit = Audit::new();
    let source = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";
    audit
        .write("project/Cargo.toml", "[package]\nname = \"top\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\nhere = \"1\"\ngone = \"1\"\n")
        .write("project/src/lib.rs", "")
        .write("project/Cargo.lock", format!("version = 4\n\n[[package]]\nname = \"gone\"\nversion = \"1.0.0\"\n{source}\nchecksum = \"00\"\n\n[[package]]\nname = \"here\"\nversion = \"1.0.0\"\n{source}\nchecksum = \"00\"\n\n[[package]]\nname = \"top\"\nversion = \"0.1.0\"\ndependencies = [\n \"gone\",\n \"here\",\n]\n"))
        .write("home/registry/src/index/here-1.0.0/Cargo.toml", "[package]\nname = \"here\"\nlicense = \"MIT\"\nbuild = \"build.rs\"\n[lib]\nproc-macro = true\n");
    let (project, home) = (audit.path("project"), audit.path("home"));
    audit.set("PROJECT", project.to_str().unwrap()).set("CARGO_HOME", home.to_str().unwrap());

    audit.step("crates");

    let here = home.join("registry/src/index/here-1.0.0").display().to_string();
    let table = audit.table("crates.tsv");
    assert_eq!(table[0], format!("here\t1.0.0\tregistry\t{here}\tMIT\t-\t{here}/build.rs\tyes\t-"));
    assert!(table[1].starts_with("top\t0.1.0\tlocal\t"), "{table:?}");
    assert_eq!(audit.table("absent.tsv"), ["gone\t1.0.0"]);
}

#[test]
fn a_project_that_is_not_there_is_named() {
    let mut audit = Audit::new();
    let nowhere = audit.path("nowhere");
    audit.set("PROJECT", nowhere.to_str().unwrap());

    let output = audit.try_step("crates");

    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no folder"), "{output:?}");
}

#[test]
fn licences_count_by_what_the_user_may_choose() {
    let mut audit = Audit::new();
    for (name, licence) in [
        ("a", "MIT OR GPL-3.0-only"),
        ("b", "MIT AND MPL-2.0"),
        ("c", "(MIT OR Apache-2.0) AND Unicode-3.0"),
        ("d", "Apache-2.0 WITH LLVM-exception"),
        ("e", "Custom-1.0"),
        ("f", "MIT/Apache-2.0"),
        ("g", "-"),
        ("h", "MIT MIT"),
    ] {
        audit.published(name, licence, &[("LICENSE", b"text")]);
    }

    let outputs = audit.step("licences");

    let classes: Vec<String> =
        audit.table("licences.tsv").iter().map(|row| row.split('\t').nth(3).unwrap().to_owned()).collect();
    let expect = [
        "permissive",
        "reciprocal",
        "permissive",
        "permissive",
        "unknown",
        "permissive",
        "unknown",
        "unknown",
    ];
    assert_eq!(classes, expect);
    assert_eq!((&*outputs["reciprocal"], &*outputs["unknown"]), ("1", "3"));
}

#[test]
fn code_is_told_from_comments_and_strings() {
    let mut audit = Audit::new();
    let source = br####"// unsafe { in a comment
fn a<'a>(x: &'a str) { let c = '"'; /* unsafe { /* nested */ } */ unsafe { b(c) } }
const S: &str = "unsafe { \" // no comment"; const R: &str = r#"unsafe { " "#; const B: &[u8] = br##"x"# unsafe { "##;
const M: &str = "over \
 unsafe { lines
 end"; let d = '\''; let e = '\u{1F600}'; let r#unsafe_ = b'"'; unsafe fn z() {}
/* block
 unsafe { */ unsafe impl Send for X {}
"####;
    audit.published("a", "MIT", &[("src/lib.rs", source), ("tests/t.rs", b"fn t() { unsafe { x() } }")]);

    audit.step("code");
    let outputs = audit.step("unsafe");

    assert_eq!(audit.table("unsafe.tsv"), ["a\t1.0.0\t1\t1\t1\t0\t0\t0\t0\tno"]);
    assert_eq!(outputs["total"], "3");
    assert_eq!(audit.table("code.tsv"), ["a\t1.0.0\t7\t2\t0"]);
}

#[test]
fn altered_sources_and_wrong_packages_are_found() {
    let mut audit = Audit::new();
    for name in ["altered", "same", "swapped"] {
        audit.published(name, "MIT", &[("src/lib.rs", b"fn f() {}")]);
    }
    let mut lock = String::new();
    for name in ["altered", "same", "swapped"] {
        let package = audit.path(&format!("home/registry/cache/index/{name}-1.0.0.crate"));
        fs::create_dir_all(package.parent().unwrap()).unwrap();
        let sources = audit.path("home/registry/src/index");
        let mut tar = Command::new("tar");
        tar.arg("-czf").arg(&package).arg("-C").arg(sources).arg(format!("{name}-1.0.0"));
        assert!(tar.status().unwrap().success());
        let mut sum = Command::new("bash");
        sum.args(["-euo", "pipefail", "-c", ". steps/common.sh; sha256 <\"$0\""]).arg(&package);
        let sum = sum.current_dir(example()).envs(&audit.env).output().unwrap().stdout;
        let sum =
            if name == "swapped" { "0".repeat(64) } else { String::from_utf8(sum).unwrap()[..64].to_owned() };
        lock.push_str(&format!("{name}\t1.0.0\tregistry\t{sum}\t-\n"));
    }
    audit.write("lock.tsv", lock);
    audit.write("home/registry/src/index/altered-1.0.0/src/lib.rs", "fn f() { evil() }");
    let lock = audit.path("lock.tsv");
    audit.set("LOCK", lock.to_str().unwrap());

    let outputs = audit.step("origin");

    let table = audit.table("origin.tsv");
    assert!(
        table[0].starts_with("altered\t1.0.0\taltered\tFiles published altered-1.0.0/src/lib.rs"),
        "{table:?}"
    );
    assert_eq!(table[1], "same\t1.0.0\tsame\t-");
    assert!(table[2].starts_with("swapped\t1.0.0\tchecksum\tlocked 000"), "{table:?}");
    assert_eq!(outputs["findings"], "2");
}

#[test]
fn hidden_content_is_found_and_plain_source_is_not() {
    let mut audit = Audit::new();
    // A generator without a pattern that gzip could use, written as base64 would be: 6 bits a character.
    let mut seed: u64 = 7;
    let mut dense = b"const KEY: &str = \"".to_vec();
    dense.extend((0..20_000).map(|_| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[(seed >> 58) as usize]
    }));
    let plain = (0..2_000).map(|i| format!("fn f{i}() {{ call({i}) }}\n")).collect::<String>();
    let mut buried = plain.clone().into_bytes();
    buried.extend(&dense);
    buried.extend(plain.bytes());
    audit
        .published("machine", "MIT", &[("blob.bin", b"\x7fELF\x02\x01\x01\0\0\0")])
        .published("plain", "MIT", &[("src/lib.rs", plain.as_bytes()), ("empty", b"")])
        .published("packed", "MIT", &[("src/lib.rs", &buried)])
        .published("trick", "MIT", &[("src/lib.rs", "let a = \"\u{202e}x\";\n".as_bytes())]);

    let outputs = audit.step("payloads");

    let table = audit.table("payloads.tsv");
    assert_eq!(table.len(), 3, "{table:?}");
    assert_eq!(table[0], "machine\t1.0.0\tmachine code (ELF)\t-\tblob.bin");
    assert!(table[1].starts_with("packed\t1.0.0\tdense text\t"), "{table:?}");
    assert_eq!(table[2], "trick\t1.0.0\treordering characters\t-\tsrc/lib.rs");
    assert_eq!(outputs["machine"], "1");
}

#[test]
fn the_same_crate_in_two_versions_is_found_with_who_needs_it() {
    let mut audit = Audit::new();
    audit
        .write(
            "out/crates.tsv",
            "d\t1.0.0\tregistry\t-\nd\t2.0.0\tregistry\t-\nx\t1.0.0\tregistry\t-\ntop\t0.1.0\tlocal\t-\n",
        )
        .write(
            "lock.tsv",
            "d\t1.0.0\t-\t-\t-\nd\t2.0.0\t-\t-\t-\ntop\t0.1.0\t-\t-\td 2.0.0;x\nx\t1.0.0\t-\t-\td 1.0.0\n",
        )
        .write("sizes.tsv", "d\t1.0.0\t1\t10\t1\nd\t2.0.0\t1\t20\t1\nx\t1.0.0\t1\t5\t1\n");
    let (lock, sizes) = (audit.path("lock.tsv"), audit.path("sizes.tsv"));
    audit.set("LOCK", lock.to_str().unwrap()).set("SIZES", sizes.to_str().unwrap());

    let outputs = audit.step("tree");

    assert_eq!(audit.table("duplicates.tsv"), ["d\t1.0.0\tx 1.0.0", "d\t2.0.0\ttop 0.1.0"]);
    assert_eq!(audit.table("weight.tsv"), ["d\t2.0.0\t1\t1\t20", "x\t1.0.0\t2\t2\t15"]);
    assert_eq!(outputs["count"], "1");
}

#[test]
fn a_passage_copied_from_another_crate_is_found() {
    let mut audit = Audit::new();
    let passage: String =
        (0..60).map(|i| format!("    let value_{i} = compute({i}, other_{i});\n")).collect();
    let other: String = (0..60).map(|i| format!("    print(value_{i}, second_{i});\n")).collect();
    audit
        .published("copy", "MIT", &[("src/lib.rs", format!("fn mine() {{}}\n{passage}").as_bytes())])
        .published("origin", "MIT", &[("src/deep.rs", passage.as_bytes())])
        .published("own", "MIT", &[("src/lib.rs", other.as_bytes())]);
    audit.step("code");

    let outputs = audit.step("clones");

    let table = audit.table("clones.tsv");
    assert_eq!(outputs["pairs"], "1", "{table:?}");
    assert!(table[0].starts_with("copy@1.0.0\torigin@1.0.0\t"), "{table:?}");
    assert!(table[0].ends_with("./src/lib.rs\t./src/deep.rs"), "{table:?}");
}

#[test]
fn build_scripts_are_listed_with_what_they_do() {
    let mut audit = Audit::new();
    let script = b"// cc::Build in a comment\nfn main() { std::process::Command::new(\"x\"); std::env::var(\"OUT_DIR\"); }\n";
    audit.published("a", "MIT", &[("build.rs", script)]).published("b", "MIT", &[("src/lib.rs", b"")]);
    audit.step("code");
    let lines = audit.path("out/code.tsv");
    audit.set("CODE_LINES", lines.to_str().unwrap());

    audit.step("build-scripts");

    let expect = "a\t1.0.0\tregistry\tbuild script\t2 lines\tstarts processes, reads the environment\t-";
    assert_eq!(audit.table("build-scripts.tsv"), [expect]);
}

#[test]
fn a_step_that_was_cut_gives_the_same_tables_when_it_runs_again() {
    let mut audit = Audit::new();
    for name in ["a", "b", "c", "d", "e"] {
        audit.published(
            name,
            "MIT",
            &[("src/lib.rs", name.as_bytes()), ("src/with space.rs", b"x"), ("z", name.as_bytes())],
        );
    }
    let steps = ["licences", "sizes", "hashes", "payloads", "code", "unsafe", "reach"];
    let tables =
        ["licences.tsv", "sizes.tsv", "hashes.tsv", "files.tsv", "payloads.tsv", "code.tsv", "unsafe.tsv"];
    audit.set("AUDIT_JOBS", "1");
    assert!(audit.hash_each());
    for step in steps {
        audit.step(step);
    }
    let first = tables.map(|table| audit.table(table));

    audit
        .write("out/payloads.work/a-1.0.0/piece.aaaa", "left behind")
        .write("out/code.part/a-1.0.0.gz", "half")
        .write("out/hash/b-1.0.0-registry.tsv", "torn")
        .write("out/hash/b-1.0.0-registry.tsv.part", "half");
    audit.write("out/sizes.tsv", "torn");
    audit.set("AUDIT_JOBS", "4");
    assert!(audit.hash_each());
    for step in steps {
        audit.step(step);
    }

    assert_eq!(tables.map(|table| audit.table(table)), first);
    assert_eq!(first[3].len(), 20, "four files in each of five crates");
}

#[test]
fn a_step_fails_and_leaves_no_table_when_a_crate_is_gone() {
    let mut audit = Audit::new();
    audit.published("a", "MIT", &[]).published("b", "MIT", &[]);
    fs::remove_dir_all(audit.path("home/registry/src/index/b-1.0.0")).unwrap();

    assert!(!audit.hash_each(), "its files cannot be read");
    assert!(audit.path("out/hash/a-1.0.0-registry.tsv").exists());
    assert!(!audit.path("out/hash/b-1.0.0-registry.tsv").exists());
    for step in ["licences", "sizes", "payloads", "code"] {
        let output = audit.try_step(step);

        assert!(!output.status.success(), "{step}: {output:?}");
        assert!(!audit.path(&format!("out/{step}.tsv")).exists(), "{step} left a table");
        assert_eq!(fs::read_to_string(audit.path("output")).unwrap(), "", "{step} gave outputs");
    }
}

#[test]
fn the_gate_fails_only_on_findings() {
    let mut audit = Audit::new();
    audit.set("RECIPROCAL", "0").set("UNKNOWN", "0").set("ALTERED", "0").set("MACHINE", "0");
    assert!(audit.try_step("gate").status.success());

    audit.set("ALTERED", "2");
    let output = audit.try_step("gate");

    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "crates altered after publication: 2\n");
}
