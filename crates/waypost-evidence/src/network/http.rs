//! `api_response`: the answer of a URL.

use async_trait::async_trait;
use hyper::header::LOCATION;
use hyper::{Method, StatusCode};
use serde_json::{Map, Value, json};
use waypost::evidence::{Cost, Finding, Probe, ProbeKind, Site};
use waypost::record::Claim;

use crate::check;
use crate::check_path;
use crate::expectations::expected::{Expected, holds, invalid};
use crate::expectations::observed::recorded;
use crate::files::json::{at, read_json};
use crate::network::http_client::{self, HttpRequest, HttpResponse};
use crate::network::subjects::{API_RESPONSE, METHODS, check_header};
use crate::network::tls;
use crate::network::url::Url;

/// Most redirects to follow, all on the same host: a slash, `https` and a language account for three.
const REDIRECTS_MAX: usize = 5;
/// Statuses of a server or gateway that refuses or cannot answer. The actual answer stays unknown.
const NO_ANSWER: [StatusCode; 7] = [
    StatusCode::UNAUTHORIZED,
    StatusCode::FORBIDDEN,
    StatusCode::PROXY_AUTHENTICATION_REQUIRED,
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::BAD_GATEWAY,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
];

/// Checks `api_response`: the `status` (default 2xx), `headers`, `body`, JSON values (`json`) and texts
/// (`contains`) of an answer.
///
/// - `ok`: the answer fits.
/// - `failed`: the answer differs, redirects to another host, or is not HTTP.
/// - `unknown`: the host is unreachable, the connection breaks, or the certificate is not trusted. Unless
///   expected, the statuses 401, 403, 407, 429, 502, 503 and 504 also count as unknown. So does a body longer
///   than 8 MiB.
///
/// The probe ignores configured proxies, passwords and cookies. At most five redirects are followed, on the
/// same host. Private addresses are allowed if the URL contains a private address or `localhost`, or if the
/// claim sets `private`.
#[derive(Debug, Clone, Copy, Default)]
pub struct HttpProbe;

#[async_trait]
impl Probe for HttpProbe {
    fn kind(&self) -> ProbeKind {
        let is_here = |claim: &Claim| Url::read(&claim.subject).is_ok_and(|url| url.host.is_here());
        ProbeKind::new(API_RESPONSE, Cost::Waiting).local_if(is_here)
    }

    async fn check(&self, claim: &Claim, _: &Site) -> Result<Finding, Finding> {
        let wanted = HttpExpectation::read(&claim.expect)?;
        let url = Url::read(&claim.subject).map_err(Finding::failed)?;
        follow_redirects(&wanted, url).await
    }
}

/// The parsed expectation of a claim.
#[derive(Debug)]
struct HttpExpectation {
    method: Method,
    status: Option<Value>,
    headers: Map<String, Value>,
    body: Option<Value>,
    /// Expected values, by path.
    json: Map<String, Value>,
    contains: Vec<String>,
    may_be_private: bool,
}

impl HttpExpectation {
    fn read(expect: &Value) -> Result<Self, Finding> {
        let known = ["method", "status", "headers", "body", "json", "contains", "private"];
        let expect = Expected::read(expect, "a response", &known)?;
        let method = match expect.get("method").map_or(Some("GET"), Value::as_str) {
            Some(name) if METHODS.contains(&name) => name.parse().unwrap_or(Method::GET),
            _ => return Err(Finding::failed(format!("`method` is one of {}", METHODS.join(", ")))),
        };
        let map = |name: &str| {
            let map = expect.map(name, "names")?;
            for (key, value) in &map {
                check(value).map_err(|error| invalid(&format!("{name}.{key}"), error))?;
            }
            Ok::<_, Finding>(map)
        };
        let wanted = Self {
            method,
            status: expect.value("status")?.cloned(),
            headers: map("headers")?,
            body: expect.value("body")?.cloned(),
            json: map("json")?,
            contains: texts(expect.get("contains"))?,
            may_be_private: expect.flag("private")?.unwrap_or(false),
        };
        for path in wanted.json.keys() {
            check_path(path).map_err(Finding::failed)?;
        }
        for name in wanted.headers.keys() {
            check_header(name).map_err(Finding::failed)?;
        }
        if wanted.wants_body() && wanted.method == Method::HEAD {
            return Err(Finding::failed("a response to HEAD has no body"));
        }
        Ok(wanted)
    }

    fn wants_body(&self) -> bool {
        self.body.is_some() || !self.json.is_empty() || !self.contains.is_empty()
    }

    fn takes(&self, status: StatusCode) -> Result<bool, Finding> {
        match &self.status {
            None => Ok(status.is_success()),
            Some(wanted) => holds("status", wanted, &status.as_u16().into()),
        }
    }

    /// Returns the finding for an answer.
    fn compared_finding(&self, answer: &HttpResponse) -> Result<Finding, Finding> {
        let status = answer.status;
        let takes_status = self.takes(status)?;
        if !takes_status && NO_ANSWER.contains(&status) {
            return Err(Finding::unknown_yet(format!("the server responded with status {status}")));
        }
        let mut found = Map::from_iter([("status".to_owned(), json!(status.as_u16()))]);
        if !takes_status {
            // An answer with the wrong status says nothing about the expected body.
            let differs = Finding::differs(found);
            return Err(if self.wants_body() { differs.either_way() } else { differs });
        }
        let mut is_met = true;
        if !self.headers.is_empty() {
            let mut headers = Map::new();
            for (name, wanted) in &self.headers {
                let value = header(answer, name);
                is_met &= holds(&format!("headers.{name}"), wanted, &value)?;
                headers.insert(name.clone(), recorded(&value));
            }
            found.insert("headers".to_owned(), headers.into());
        }
        let text = String::from_utf8_lossy(&answer.body);
        if let Some(wanted) = &self.body {
            let body = Value::from(text.trim_end_matches(['\r', '\n']));
            is_met &= holds("body", wanted, &body)?;
            found.insert("body".to_owned(), recorded(&body));
        }
        if !self.contains.iter().all(|part| text.contains(part)) {
            is_met = false;
            found.insert("contains".to_owned(), false.into());
        }
        if self.json.is_empty() {
            return Ok(Finding::compared(is_met, found));
        }
        let body = read_json(&answer.body, "the answer")?;
        let (mut values, mut missing) = (Map::new(), Vec::new());
        for (path, wanted) in &self.json {
            match at(&body, path)? {
                Some(value) => {
                    is_met &= holds(&format!("json.{path}"), wanted, &value)?;
                    values.insert(path.clone(), recorded(&value));
                }
                None => missing.push(format!("`{path}`")),
            }
        }
        found.insert("json".to_owned(), values.into());
        let finding = Finding::compared(is_met && missing.is_empty(), found);
        Ok(match missing.is_empty() {
            true => finding,
            false => finding.because(format!("the response has no value at {}", missing.join(", "))),
        })
    }
}

fn texts(wanted: Option<&Value>) -> Result<Vec<String>, Finding> {
    let parts: Option<Vec<String>> = match wanted {
        None => return Ok(Vec::new()),
        Some(Value::Array(parts)) => parts.iter().map(|part| part.as_str().map(str::to_owned)).collect(),
        Some(part) => part.as_str().map(|part| vec![part.to_owned()]),
    };
    let parts = parts.filter(|parts| !parts.is_empty() && !parts.contains(&String::new()));
    parts.ok_or_else(|| Finding::failed("`contains` is a text, or a list of texts"))
}

/// Returns the value of a header, with repeated values joined; null if the header is absent.
fn header(answer: &HttpResponse, name: &str) -> Value {
    let values: Vec<_> = answer
        .headers
        .get_all(name)
        .iter()
        .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        .collect();
    if values.is_empty() { Value::Null } else { values.join(", ").into() }
}

/// Sends the request and follows redirects within the limits.
async fn follow_redirects(wanted: &HttpExpectation, mut url: Url) -> Result<Finding, Finding> {
    let may_follow = matches!(wanted.method, Method::GET | Method::HEAD);
    let mut followed = 0;
    loop {
        let answer = send(wanted, &url).await?;
        let location = answer.headers.get(LOCATION).and_then(|location| location.to_str().ok());
        let leads = answer.status.is_redirection() && may_follow && !wanted.takes(answer.status)?;
        let Some(location) = location.filter(|_| leads) else { return wanted.compared_finding(&answer) };
        let led = |why: String| {
            let found = json!({ "status": answer.status.as_u16(), "location": recorded(&location.into()) });
            Err(Finding::differs(found).either_way().because(why))
        };
        let Some(next) = url.follow(location) else {
            return led(
                "the redirect leads to another site, and is not followed: write a claim for that URL"
                    .to_owned(),
            );
        };
        if followed == REDIRECTS_MAX {
            return led(format!("more than {REDIRECTS_MAX} redirects"));
        }
        (url, followed) = (next, followed + 1);
    }
}

async fn send(wanted: &HttpExpectation, url: &Url) -> Result<HttpResponse, Finding> {
    let request_spec = HttpRequest {
        method: wanted.method.clone(),
        host: url.authority(),
        path: url.path_and_query(),
        wants_body: wanted.wants_body(),
    };
    let stream = url.host.connect(url.port, wanted.may_be_private).await?;
    if url.is_tls {
        http_client::send(tls::over(stream, url.name()).await?, request_spec).await
    } else {
        http_client::send(stream, request_spec).await
    }
}
