//! What claims of evidence are about, as far as a text can be wrong about that.

use waypost_evidence::{check_connection, check_container, check_port, check_url, recorded_connection};

/// What claims of a kind are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// The step itself.
    Step,
    /// A path beneath the folder of the workflow file.
    Path,
    /// A port, here or at another host.
    Port,
    /// A URL that can be asked.
    Url,
    /// A container, by name or id.
    Container,
    /// A connection to a PostgreSQL database.
    Database,
    /// A process, by name or number.
    Process,
    /// What is run in the folder of the workflow file: the code of a shell, or a program.
    Program,
}

impl About {
    /// Returns how a subject is recorded: what it is about is plain from that.
    pub(crate) fn recorded(self, subject: &str) -> String {
        match self {
            Self::Database => recorded_connection(subject),
            _ => subject.to_owned(),
        }
    }

    /// Says what is wrong with a subject as it is recorded, and what would be right; it is not quoted.
    pub(crate) fn wrong(self, subject: &str) -> Option<(String, &'static str)> {
        let (checked, help) = match self {
            Self::Path if recorded_connection(subject) == subject => (
                Err("it looks like a connection to PostgreSQL".to_owned()),
                "begin a path with `./`, or write `postgres:`",
            ),
            Self::Step | Self::Path | Self::Process | Self::Program => return None,
            Self::Database => (
                check_connection(subject),
                "write `postgres: postgres://user@host/database`, with the password in PGPASSWORD or ~/.pgpass, or \
                 `postgres: env:NAME`",
            ),
            Self::Port => (check_port(subject), "write `port: 8089` or `port: host:8089`"),
            Self::Container => (check_container(subject), "write `container: web`"),
            Self::Url => (check_url(subject), "write `http: https://host/path`"),
        };
        checked.err().map(|why| (why, help))
    }
}
