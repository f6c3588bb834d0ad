//! `container_running`: state, health and image of a container.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use hyper::{Method, StatusCode};
use serde_json::{Map, Value};
use tokio::net::UnixStream;
use waypost::evidence::{Cost, Finding, Probe, ProbeKind, Site};
use waypost::record::{Claim, Verdict};

use crate::expectations::expected::{Expected, holds};
use crate::network::http_client::{self, HttpRequest};
use crate::network::subjects::{CONTAINER_RUNNING, ENGINES, check_container};

/// Prefix of an image digest.
const DIGEST: &str = "sha256:";
/// Digits of a container id in engine listings.
const SHORT_ID_DIGITS: usize = 12;

/// Checks `container_running`: a container, by name or id, is `running` (the default), `healthy`, and uses an
/// `image`. `engine` is `docker`, `podman`, or `auto` for all engines present.
///
/// With `running: false`, the container must exist and not run. An image is compared with the name at
/// container start, or with its digest if the expectation starts with `sha256:`.
///
/// - `ok`: an engine reports the expected state.
/// - `failed`: an engine reports another state, or every engine present reports no container with the name.
///   An id prefix of fewer than 12 digits does not match.
/// - `unknown`: no engine is present, or an engine denies access or does not answer and the others do not
///   know the container. An engine is absent if its socket file is missing; an engine named by a variable
///   counts as present. `healthy: false` is unknown while the health check is starting.
///
/// The probe only queries Unix sockets for the container; it starts nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerProbe {
    docker: Sockets,
    podman: Sockets,
}

/// The sockets of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Sockets {
    /// The usual socket paths, in query order.
    Usual(Vec<PathBuf>),
    /// The socket that a variable names.
    Named(PathBuf),
    /// The variable does not name a local socket; the text says why.
    Elsewhere(String),
}

impl Default for ContainerProbe {
    /// Returns a probe for the engines of this machine: at `DOCKER_HOST` and `CONTAINER_HOST` if set, else at
    /// the usual sockets of user and system.
    fn default() -> Self {
        Self::by(|name| std::env::var(name).ok())
    }
}

/// Returns the sockets of an engine: from its variable if set, else the usual sockets of user and system.
fn sockets(
    variable: impl Fn(&str) -> Option<String>,
    named_by: &str,
    (of_user, of_system): (&str, &str),
) -> Sockets {
    if let Some(value) = variable(named_by).filter(|value| !value.is_empty()) {
        return match value.strip_prefix("unix://") {
            Some(path) => Sockets::Named(PathBuf::from(path)),
            None => Sockets::Elsewhere(format!(
                "{named_by} does not name a socket of this machine (`unix://...`), and remote engines are \
                 not supported"
            )),
        };
    }
    let of_user = variable("XDG_RUNTIME_DIR").map(|folder| PathBuf::from(folder).join(of_user));
    Sockets::Usual(of_user.into_iter().chain([PathBuf::from(of_system)]).collect())
}

/// The answer of an engine.
enum Inspection {
    /// The inspection result of the container.
    Known(Value),
    /// The engine has no container with the name.
    None,
    /// The socket does not exist.
    NoEngine,
}

impl ContainerProbe {
    /// Returns a probe that queries these sockets in order and skips missing socket files.
    pub fn at(docker: impl IntoIterator<Item = PathBuf>, podman: impl IntoIterator<Item = PathBuf>) -> Self {
        let usual = Sockets::Usual;
        Self { docker: usual(docker.into_iter().collect()), podman: usual(podman.into_iter().collect()) }
    }

    /// Returns a probe that reads these variables instead of the process environment.
    pub fn with_variables(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let variables: BTreeMap<String, String> = variables.into_iter().collect();
        Self::by(|name| variables.get(name).cloned())
    }

    fn by(variable: impl Fn(&str) -> Option<String>) -> Self {
        let docker = ("docker.sock", "/var/run/docker.sock");
        let podman = ("podman/podman.sock", "/run/podman/podman.sock");
        Self {
            docker: sockets(&variable, "DOCKER_HOST", docker),
            podman: sockets(&variable, "CONTAINER_HOST", podman),
        }
    }

    /// Queries the engines in order until an engine knows the container.
    async fn inspect(&self, name: &str, engine: &str) -> Result<Value, Finding> {
        let both = [("docker", &self.docker), ("podman", &self.podman)];
        let (mut is_there, mut silent) = (false, None);
        for (_, sockets) in both.into_iter().filter(|(own, _)| engine == "auto" || engine == *own) {
            let (sockets, is_named) = match sockets {
                Sockets::Usual(sockets) => (&**sockets, false),
                Sockets::Named(socket) => (std::slice::from_ref(socket), true),
                Sockets::Elsewhere(why) => {
                    silent = Some(Finding::unknown(why));
                    continue;
                }
            };
            for socket in sockets {
                match ask(socket, is_named, name).await {
                    Ok(Inspection::Known(found)) => return Ok(found),
                    Ok(Inspection::None) => is_there = true,
                    Ok(Inspection::NoEngine) => {}
                    Err(finding) => silent = Some(finding),
                }
            }
        }
        // An engine that did not answer may have the container.
        Err(match (silent, is_there) {
            (Some(silent), _) => silent,
            (None, true) => Finding::absent("the container does not exist"),
            (None, false) if engine == "auto" => Finding::unknown_yet("neither docker nor podman is running"),
            (None, false) => Finding::unknown_yet(format!("{engine} is not running")),
        })
    }
}

async fn ask(socket: &Path, is_named: bool, name: &str) -> Result<Inspection, Finding> {
    let is_missing = |error: io::Error| error.kind() == ErrorKind::NotFound;
    if !is_named && std::fs::symlink_metadata(socket).is_err_and(is_missing) {
        return Ok(Inspection::NoEngine);
    }
    // A socket without a listener: the engine was stopped, but its containers may still exist.
    let stream = UnixStream::connect(socket).await.map_err(|error| {
        let why = format!("cannot reach the engine at {}: {error}", socket.display());
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Finding::unknown_yet(why),
            _ => Finding::unknown(why),
        }
    })?;
    let path = format!("/containers/{name}/json");
    let request_spec = HttpRequest { method: Method::GET, host: "localhost", path: &path, wants_body: true };
    let answer =
        http_client::send(stream, request_spec).await.map_err(|finding| match finding.verdict() {
            // A server that does not speak HTTP is not an engine, so the container's state stays unknown.
            Verdict::Failed => Finding::unknown(format!("no engine responds at {}", socket.display())),
            _ => finding,
        })?;
    match answer.status {
        StatusCode::OK => {
            let found: Value = serde_json::from_slice(&answer.body)
                .map_err(|error| unexpected(&format!("the response is not JSON: {error}")))?;
            Ok(if is_called(&found, name)? { Inspection::Known(found) } else { Inspection::None })
        }
        StatusCode::NOT_FOUND => Ok(Inspection::None),
        status => Err(Finding::unknown_yet(format!("the engine responded with status {status}"))),
    }
}

/// Returns whether the inspected container is the requested container. Engines accept any id prefix, which
/// may match another container; here [`SHORT_ID_DIGITS`] are required.
fn is_called(found: &Value, name: &str) -> Result<bool, Finding> {
    let text = |key: &str| found[key].as_str().map(|text| text.strip_prefix('/').unwrap_or(text));
    match (text("Name"), text("Id")) {
        (None, None) => Err(unexpected("the response does not name the container")),
        (own, id) => {
            let is_short = name.len() >= SHORT_ID_DIGITS && name.bytes().all(|byte| byte.is_ascii_hexdigit());
            let fits = |id: &str| id == name || is_short && id.starts_with(name);
            Ok(own == Some(name) || id.is_some_and(fits))
        }
    }
}

fn unexpected(why: &str) -> Finding {
    Finding::unknown(format!("cannot decode the response of the engine: {why}"))
}

#[async_trait]
impl Probe for ContainerProbe {
    fn kind(&self) -> ProbeKind {
        ProbeKind::new(CONTAINER_RUNNING, Cost::Waiting).local().live()
    }

    async fn check(&self, claim: &Claim, _: &Site) -> Result<Finding, Finding> {
        let wanted = ContainerExpectation::read(&claim.expect)?;
        check_container(&claim.subject).map_err(Finding::failed)?;
        wanted.compared_finding(&self.inspect(&claim.subject, wanted.engine).await?)
    }
}

#[derive(Debug)]
struct ContainerExpectation<'a> {
    running: bool,
    healthy: Option<bool>,
    image: Option<&'a Value>,
    engine: &'a str,
}

impl<'a> ContainerExpectation<'a> {
    fn read(expect: &'a Value) -> Result<Self, Finding> {
        let map = Expected::read(expect, "a container", &["running", "healthy", "image", "engine"])?;
        let engine = map.get("engine").map_or(Some("auto"), Value::as_str);
        let engine = engine.filter(|engine| ENGINES.contains(engine));
        Ok(Self {
            running: map.flag("running")?.unwrap_or(true),
            healthy: map.flag("healthy")?,
            image: map.value("image")?,
            engine: engine
                .ok_or_else(|| Finding::failed(format!("`engine` is one of {}", ENGINES.join(", "))))?,
        })
    }

    /// Compares the expectations with the inspection result of an engine.
    fn compared_finding(&self, known: &Value) -> Result<Finding, Finding> {
        let state = &known["State"];
        let truth = |name: &str| state[name].as_bool().unwrap_or_default();
        let running =
            state["Running"].as_bool().ok_or_else(|| unexpected("the response has no running state"))?;
        // A paused or restarting container does not count as running.
        let running = running && !truth("Paused") && !truth("Restarting");
        let mut found = Map::from_iter([("running".to_owned(), running.into())]);
        let mut is_met = running == self.running;
        if let Some(status) = state["Status"].as_str().filter(|_| !is_met) {
            found.insert("status".to_owned(), status.into());
        }
        if let Some(wanted) = self.healthy {
            // Older Podman versions use `Healthcheck`.
            let health = [&state["Health"], &state["Healthcheck"]]
                .into_iter()
                .find_map(|health| health["Status"].as_str());
            match health.filter(|health| !matches!(*health, "" | "none")) {
                Some("starting") if !wanted => {
                    return Err(Finding::unknown_yet("the first health check is not finished"));
                }
                Some(health) => {
                    is_met &= (health == "healthy") == wanted;
                    found.insert("health".to_owned(), health.into());
                }
                None => {
                    return Err(Finding::failed("the container has no health check"));
                }
            }
        }
        if let Some(wanted) = self.image {
            // The image digest, or the image name at container start.
            let is_digest = wanted.as_str().is_some_and(|wanted| wanted.starts_with(DIGEST));
            let names = [&known["Config"]["Image"], &known["ImageName"]];
            let name = if is_digest {
                &known["Image"]
            } else {
                names.into_iter().find(|name| name.is_string()).unwrap_or(&Value::Null)
            };
            if !name.is_string() {
                return Err(unexpected("the response has no image"));
            }
            is_met &= holds("image", wanted, name)?;
            found.insert("image".to_owned(), name.clone());
        }
        let code = state["ExitCode"].as_i64().filter(|code| *code != 0 && self.running && !running);
        let finding = Finding::compared(is_met, found);
        Ok(match code {
            Some(code) if !is_met => finding.because(format!("the container exited with code {code}")),
            _ => finding,
        })
    }
}
