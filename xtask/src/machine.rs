//! Programs that the tests need besides Rust, and their system packages.
//!
//! Decisions are pure: [`steps`] returns the install commands for missing programs, and [`prepare`] examines
//! the machine and runs the commands. Nothing is installed if a password would be required.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::bail;

use crate::{output, repo};

/// A program that tests call, the reason, and its package for each [`Installer`].
#[derive(Debug)]
pub(crate) struct Need {
    program: &'static str,
    why: &'static str,
    apt: &'static str,
    dnf: &'static str,
    brew: &'static str,
}

/// All programs for `cargo xtask test`. A test with a new need adds a row here.
pub(crate) const NEEDS: &[Need] = &[
    Need {
        program: "cc",
        why: "compiles the bundled SQLite",
        apt: "gcc libc6-dev",
        dnf: "gcc glibc-devel",
        brew: "gcc",
    },
    Need {
        program: "bash",
        why: "is the shell of workflow steps and of the example",
        apt: "bash",
        dnf: "bash",
        brew: "bash",
    },
    Need {
        program: "awk",
        why: "reads tables in the example's steps",
        apt: "mawk",
        dnf: "gawk",
        brew: "gawk",
    },
    Need {
        program: "tar",
        why: "unpacks crates in the example's steps",
        apt: "tar",
        dnf: "tar",
        brew: "gnu-tar",
    },
    Need {
        program: "gzip",
        why: "packs pieces of files in the example's steps",
        apt: "gzip",
        dnf: "gzip",
        brew: "gzip",
    },
    Need {
        program: "diff",
        why: "compares sources in the example's steps",
        apt: "diffutils",
        dnf: "diffutils",
        brew: "diffutils",
    },
    Need {
        program: "sqlite3",
        why: "keeps the tables of an example",
        apt: "sqlite3",
        dnf: "sqlite",
        brew: "sqlite",
    },
    Need {
        program: "initdb",
        why: "makes the PostgreSQL servers of tests (with `postgres` and `psql`)",
        apt: "postgresql",
        dnf: "postgresql-server postgresql",
        brew: "postgresql@17",
    },
    Need {
        program: "pgbouncer",
        why: "is a pooler before the PostgreSQL servers of tests",
        apt: "pgbouncer",
        dnf: "pgbouncer",
        brew: "pgbouncer",
    },
    Need { program: "git", why: "shows that `.waypost` ignores itself", apt: "git", dnf: "git", brew: "git" },
];

/// Install locations of PostgreSQL packages, possibly with several versions: a folder and the prefix of its
/// version folders. The tests search them too.
const VERSIONS: &[(&str, &str)] = &[
    ("/usr/lib/postgresql", ""),
    ("/usr", "pgsql"),
    ("/opt/homebrew/opt", "postgresql"),
    ("/usr/local/opt", "postgresql"),
];

/// The package manager of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Installer {
    Apt,
    Dnf,
    Brew,
}

/// Permissions without a password prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    Root,
    Sudo,
    User,
}

impl Installer {
    /// In order of preference: on a machine with two of them, system packages are in the first.
    const ALL: [Self; 3] = [Self::Apt, Self::Dnf, Self::Brew];

    fn program(self) -> &'static str {
        match self {
            Self::Apt => "apt-get",
            Self::Dnf => "dnf",
            Self::Brew => "brew",
        }
    }

    fn package(self, need: &Need) -> &'static str {
        match self {
            Self::Apt => need.apt,
            Self::Dnf => need.dnf,
            Self::Brew => need.brew,
        }
    }

    /// Homebrew installs as the user and refuses root; the others need root.
    fn may_install(self, rights: Rights) -> bool {
        match self {
            Self::Apt | Self::Dnf => rights != Rights::User,
            Self::Brew => rights != Rights::Root,
        }
    }
}

/// Checks that every program of `needs` exists, and installs missing programs if no password is required.
///
/// # Errors
/// If a program is still missing. The message lists each missing program, the reason, and the install
/// command.
pub(crate) fn prepare(needs: &[Need]) -> anyhow::Result<()> {
    let missing = missing(needs);
    if missing.is_empty() {
        return Ok(());
    }
    let installer = Installer::ALL.into_iter().find(|i| find(i.program()).is_some());
    if let Some(installer) = installer
        && installer.may_install(rights())
    {
        for step in steps(installer, rights(), &missing) {
            let mut command = Command::new(&step[0]);
            // Never prompts, and does not start servers of the packages.
            command.args(&step[1..]).env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1");
            repo::run(&mut command).unwrap_or_else(output::note);
        }
    }
    let missing = self::missing(needs);
    if missing.is_empty() {
        return Ok(());
    }
    bail!("{}", advice(installer, &missing))
}

fn missing(needs: &[Need]) -> Vec<&Need> {
    needs.iter().filter(|need| find(need.program).is_none()).collect()
}

/// Returns the install commands for missing programs, in order.
fn steps(installer: Installer, rights: Rights, missing: &[&Need]) -> Vec<Vec<String>> {
    let command = |args: &[&str]| -> Vec<String> {
        let sudo: &[&str] =
            if rights == Rights::Sudo && installer != Installer::Brew { &["sudo", "-n"] } else { &[] };
        sudo.iter().chain([&installer.program()]).chain(args).map(ToString::to_string).collect()
    };
    let mut install = match installer {
        Installer::Apt => command(&["install", "-y", "--no-install-recommends"]),
        Installer::Dnf => command(&["install", "-y"]),
        Installer::Brew => command(&["install"]),
    };
    for need in missing {
        install.extend(installer.package(need).split(' ').map(ToString::to_string));
    }
    match installer {
        // A fresh container image has no package lists.
        Installer::Apt => vec![command(&["update"]), install],
        Installer::Dnf | Installer::Brew => vec![install],
    }
}

/// Returns the instructions for a person.
fn advice(installer: Option<Installer>, missing: &[&Need]) -> String {
    let mut text = String::from("the tests need programs that this machine does not have:");
    for need in missing {
        text.push_str(&format!("\n  {}: it {}", need.program, need.why));
    }
    match installer {
        Some(installer) => {
            text.push_str("\nhint: run");
            for step in steps(installer, Rights::User, missing) {
                let sudo = if installer == Installer::Brew { "" } else { "sudo " };
                text.push_str(&format!("\n  {sudo}{}", step.join(" ")));
            }
        }
        None => text.push_str(
            "\nhint: install them with your system's package manager (no apt-get, dnf or brew found)",
        ),
    }
    text
}

fn rights() -> Rights {
    if rustix::process::geteuid().is_root() {
        return Rights::Root;
    }
    let sudo = Command::new("sudo")
        .args(["-n", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match sudo {
        Ok(status) if status.success() => Rights::Sudo,
        Ok(_) | Err(_) => Rights::User,
    }
}

/// Returns the first executable file with this name, on the `PATH` or in a version folder.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .chain(versions(VERSIONS))
        // Packages put servers there, which is on the path of the administrator only.
        .chain([PathBuf::from("/usr/sbin")])
        .map(|dir| dir.join(program))
        .find(|file| is_executable(file))
}

/// Returns the program folders below `places`, for entries with the given prefix.
fn versions(places: &[(&str, &str)]) -> Vec<PathBuf> {
    let below = |(above, begins): &(&str, &str)| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(above).into_iter().flatten().flatten();
        let of_versions = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(begins));
        of_versions.map(|entry| entry.path().join("bin")).collect()
    };
    places.iter().flat_map(below).collect()
}

fn is_executable(file: &Path) -> bool {
    file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(program: &'static str) -> Need {
        Need { program, why: "does a thing", apt: "pack libpack-dev", dnf: "pack-devel", brew: "pack" }
    }

    fn lines(installer: Installer, rights: Rights) -> Vec<String> {
        steps(installer, rights, &[&need("pack"), &need("other")]).iter().map(|s| s.join(" ")).collect()
    }

    #[test]
    fn apt_refreshes_its_lists_and_installs_all_at_once() {
        let expect = [
            "apt-get update",
            "apt-get install -y --no-install-recommends pack libpack-dev pack libpack-dev",
        ];

        assert_eq!(lines(Installer::Apt, Rights::Root), expect);
    }

    #[test]
    fn sudo_is_asked_without_a_prompt_and_never_for_brew() {
        assert_eq!(lines(Installer::Dnf, Rights::Sudo), ["sudo -n dnf install -y pack-devel pack-devel"]);
        assert_eq!(lines(Installer::Brew, Rights::Sudo), ["brew install pack pack"]);
    }

    #[test]
    fn nothing_is_installed_without_the_right_to() {
        assert!(!Installer::Apt.may_install(Rights::User));
        assert!(!Installer::Brew.may_install(Rights::Root));
        assert!(Installer::Brew.may_install(Rights::User));
    }

    #[test]
    fn advice_names_the_program_the_reason_and_the_command() {
        let missing = need("pack");

        let text = advice(Some(Installer::Dnf), &[&missing]);

        assert_eq!(
            text,
            "the tests need programs that this machine does not have:\n  pack: it does a thing\nhint: run\n  sudo dnf install -y pack-devel"
        );
        assert!(advice(None, &[&missing]).contains("package manager"));
    }

    #[test]
    fn programs_of_several_versions_are_found_beside_the_path() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["pgsql-16/bin", "pgsql-17/bin", "other/bin"] {
            std::fs::create_dir_all(folder.path().join(name)).unwrap();
        }

        let mut found = versions(&[(folder.path().to_str().unwrap(), "pgsql"), ("/no/such/folder", "")]);

        found.sort();
        assert_eq!(found, ["pgsql-16/bin", "pgsql-17/bin"].map(|name| folder.path().join(name)));
    }

    #[test]
    fn a_program_is_found_on_the_path_only_if_it_can_be_run() {
        assert!(find("sh").is_some());
        assert_eq!(find("no-such-program-anywhere"), None);
        assert!(!is_executable(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml").as_path()));
    }
}
