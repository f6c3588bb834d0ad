//! URLs for HTTP requests.

use hyper::Uri;

use crate::network::host::Host;

/// A parsed `http` or `https` URL.
#[derive(Debug, Clone)]
pub(crate) struct Url {
    uri: Uri,
    pub(crate) host: Host,
    pub(crate) port: u16,
    pub(crate) is_tls: bool,
}

impl Url {
    /// Parses an absolute URL without credentials.
    ///
    /// An error does not quote the URL, which could contain a password.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let no_url = || "not a URL: write `https://host/path`, with other characters as `%20`".to_owned();
        // A fragment is never sent.
        let text = text.split_once('#').map_or(text, |(text, _)| text);
        let uri: Uri = text.parse().ok().filter(|_| text.is_ascii()).ok_or_else(no_url)?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(_) => return Err("the URL must begin with `http://` or `https://`".to_owned()),
            None => return Err(no_url()),
        };
        let authority = uri.authority().ok_or_else(no_url)?.as_str();
        if authority.contains('@') {
            return Err("the URL contains a user name or password, which would be recorded".to_owned());
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(no_url)?;
        let port = match authority[host.len()..].strip_prefix(':') {
            None => {
                if is_tls {
                    443
                } else {
                    80
                }
            }
            Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or_else(no_url)?,
        };
        Ok(Self { host: Host::read(host), port, is_tls, uri })
    }

    /// Returns the path and query of the request.
    pub(crate) fn path_and_query(&self) -> &str {
        self.uri.path_and_query().map_or("/", |path| path.as_str())
    }

    /// Returns the host, with the port if the URL contains a port.
    pub(crate) fn authority(&self) -> &str {
        self.uri.authority().map_or("", |authority| authority.as_str())
    }

    /// Returns the host name that the certificate must match.
    pub(crate) fn name(&self) -> &str {
        self.uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
    }

    /// Resolves a `Location` reference. Returns `None` for another host or port, and for a downgrade to
    /// `http`.
    pub(crate) fn follow(&self, location: &str) -> Option<Self> {
        let scheme = if self.is_tls { "https" } else { "http" };
        let text = if has_scheme(location) {
            location.to_owned()
        } else if location.starts_with("//") {
            format!("{scheme}:{location}")
        } else if location.starts_with('/') {
            format!("{scheme}://{}{location}", self.authority())
        } else if location.starts_with('?') {
            format!("{scheme}://{}{}{location}", self.authority(), self.uri.path())
        } else {
            let folder = self.uri.path().rsplit_once('/').map_or("", |(folder, _)| folder);
            format!("{scheme}://{}{folder}/{location}", self.authority())
        };
        let next = Self::read(&text).ok()?;
        let is_same = (next.port, next.is_tls) == (self.port, self.is_tls);
        let is_safer = (self.port, self.is_tls, next.port, next.is_tls) == (80, false, 443, true);
        (next.host == self.host && (is_same || is_safer)).then_some(next)
    }
}

/// Returns whether a reference starts with a scheme such as `https:`, which makes the reference absolute.
fn has_scheme(reference: &str) -> bool {
    let end = reference.find([':', '/', '?', '#']);
    let before = end.filter(|end| reference[*end..].starts_with(':')).map(|end| &reference[..end]);
    before.is_some_and(|scheme| scheme.starts_with(|first: char| first.is_ascii_alphabetic()))
}

#[cfg(test)]
mod tests {
    use super::Url;

    #[test]
    fn a_reference_is_followed_to_the_same_service_only() {
        let url = Url::read("http://api.example/v1/items?x=1#y").unwrap();
        let followed = |location| url.follow(location).map(|url| url.uri.to_string());
        assert_eq!(followed("/v2").as_deref(), Some("http://api.example/v2"));
        assert_eq!(followed("more").as_deref(), Some("http://api.example/v1/more"));
        assert_eq!(followed("//API.example/x").as_deref(), Some("http://API.example/x"));
        assert_eq!(followed("https://api.example/x").as_deref(), Some("https://api.example/x"));
        assert_eq!(followed("?u=a:b").as_deref(), Some("http://api.example/v1/items?u=a:b"));
        for (here, to) in [("x?u=http://other/", "v1/x?u=http://other/"), ("/x?u=http://b", "x?u=http://b")] {
            assert_eq!(followed(here).as_deref(), Some(&*format!("http://api.example/{to}")));
        }
        for elsewhere in [
            "mailto:me@api.example",
            "http://other.example/",
            "//other.example/",
            "http://api.example:8080/",
            "https://api.example:8443/",
            "http://127.0.0.1/",
            "file:///etc/passwd",
            "gopher://api.example/",
            "http://me@api.example/",
            "http://",
        ] {
            assert_eq!(followed(elsewhere), None, "{elsewhere}");
        }
        let safe = Url::read("https://api.example/").unwrap();
        assert!(safe.follow("http://api.example/").is_none(), "less safe");
    }

    #[test]
    fn what_is_no_url_that_can_be_asked_is_refused_without_a_quote() {
        for wrong in [
            "",
            "api.example/x",
            "/x",
            "ftp://api.example/",
            "http://",
            "http:///x",
            "http://:80/",
            "http://a:0/",
            "http://a:99999/",
            "http://a:b/",
            "http://me:secret@a/",
            "http://me@a/",
            "http://a b/",
            "http://a/ü",
        ] {
            let why = Url::read(wrong).map(|url| url.authority().to_owned()).unwrap_err();
            assert!(!why.contains("secret"), "{wrong}: {why}");
        }
    }
}
