//! The few requests that the driver sends to the API server.

use std::io::{BufRead as _, BufReader, Read as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use paragpu_config::files;
use serde_json::Value;
use ureq::Agent;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use crate::Error;

/// How long to wait for a response.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of bytes of a response, such as a list of claims.
const MAX_RESPONSE: u64 = 256 << 20;
/// Maximum number of bytes of an event of a watch.
const MAX_EVENT: u64 = 4 << 20;
/// The directory with a service account's credentials in a Pod.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The HTTP status for a version that is too old to be watched.
pub(crate) const GONE: u16 = 410;

/// The path of claims.
pub const CLAIMS: &str = "/apis/resource.k8s.io/v1/resourceclaims";
/// The path of slices.
pub const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

/// The address of the API server, and the client's credentials.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Its address, `https://HOST:PORT`; empty for that of the Pod's cluster.
    pub server: String,
    /// The certificates of its authority (PEM).
    pub ca: Option<PathBuf>,
    /// A file with the token. It is read again for each request, because tokens of service
    /// accounts are replaced.
    pub token: Option<PathBuf>,
}

/// The API server.
#[derive(Debug, Clone)]
pub struct Api {
    agent: Agent,
    server: String,
    token: Option<PathBuf>,
}

/// An event of a watch.
#[derive(Debug)]
pub struct Event {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK`, `ERROR`.
    pub kind: String,
    /// The object.
    pub object: Value,
}

impl Api {
    /// Creates a client.
    ///
    /// # Errors
    /// [`Error`]: no server is configured, the certificates cannot be read, or the server
    /// could not be authenticated.
    pub fn new(options: Options) -> Result<Self, Error> {
        let mut options = options;
        if options.server.is_empty() {
            let said = |name| std::env::var(name).ok();
            let (host, port) = said("KUBERNETES_SERVICE_HOST")
                .zip(said("KUBERNETES_SERVICE_PORT"))
                .ok_or_else(|| Error::Configuration("no API server: set --server".into()))?;
            options.server = match host.contains(':') {
                true => format!("https://[{host}]:{port}"),
                false => format!("https://{host}:{port}"),
            };
            let account = Path::new(ACCOUNT);
            options.ca.get_or_insert_with(|| account.join("ca.crt"));
            options.token.get_or_insert_with(|| account.join("token"));
        }
        let (scheme, host) = options.server.split_once("://").unwrap_or_default();
        if !["https", "http"].contains(&scheme) || host.is_empty() {
            let text = format!(
                "{:?} is no API server's address: use https://HOST:PORT",
                options.server
            );
            return Err(Error::Configuration(text));
        }
        let secure = scheme == "https";
        if secure != options.ca.is_some() {
            let advice = "use --ca with an https:// server, and only with one";
            return Err(Error::Configuration(advice.into()));
        }
        if options.token.is_some() && !secure {
            let advice =
                "use --token only with an https:// server: otherwise it would be sent in the clear";
            return Err(Error::Configuration(advice.into()));
        }
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(5)))
            .timeout_global(Some(PATIENCE));
        if let Some(path) = &options.ca {
            let (_, pem) = files::read(path).map_err(Error::file(path))?;
            let items = parse_pem(&pem).filter_map(|item| match item {
                Ok(PemItem::Certificate(certificate)) => Some(certificate.to_owned()),
                _ => None,
            });
            let roots: Vec<_> = items.collect();
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let tls = TlsConfig::builder()
                .root_certs(RootCerts::Specific(Arc::new(roots)))
                .unversioned_rustls_crypto_provider(provider);
            config = config.tls_config(tls.build());
        }
        Ok(Self {
            agent: config.build().new_agent(),
            server: options.server.trim_end_matches('/').to_owned(),
            token: options.token,
        })
    }

    fn bearer(&self) -> Result<Option<String>, Error> {
        let read = |path: &PathBuf| {
            let token = files::read_text(path).map_err(Error::file(path))?;
            Ok(format!("Bearer {}", token.trim()))
        };
        self.token.as_ref().map(read).transpose()
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.server)
    }

    /// Reads an object or a list.
    pub fn get(&self, path: &str) -> Result<Value, Error> {
        let mut request = self.agent.get(self.url(path));
        if let Some(bearer) = self.bearer()? {
            request = request.header("Authorization", bearer);
        }
        answer(request.call().map_err(unreachable)?)
    }

    /// Creates an object in a collection.
    pub fn create(&self, path: &str, object: &Value) -> Result<Value, Error> {
        self.send(self.agent.post(self.url(path)), object)
    }

    /// Replaces an object, if it has not changed since it was read.
    ///
    /// # Errors
    /// [`Error`]; [`Error::is_conflict`] if it changed.
    pub fn replace(&self, path: &str, object: &Value) -> Result<Value, Error> {
        self.send(self.agent.put(self.url(path)), object)
    }

    fn send(
        &self,
        request: ureq::RequestBuilder<ureq::typestate::WithBody>,
        object: &Value,
    ) -> Result<Value, Error> {
        let mut request = request.header("Content-Type", "application/json");
        if let Some(bearer) = self.bearer()? {
            request = request.header("Authorization", bearer);
        }
        let text = object.to_string();
        answer(request.send(text.as_str()).map_err(unreachable)?)
    }

    /// Watches a collection from a version on, until `seen` breaks, the server ends the
    /// watch, or the time is over.
    pub fn watch<T>(
        &self,
        path: &str,
        version: &str,
        time: Duration,
        mut seen: impl FnMut(Event) -> ControlFlow<T>,
    ) -> Result<Option<T>, Error> {
        let mark = if path.contains('?') { '&' } else { '?' };
        let seconds = time.as_secs().max(1);
        let url = self.url(&format!(
            "{path}{mark}watch=true&allowWatchBookmarks=true&resourceVersion={version}&\
             timeoutSeconds={seconds}"
        ));
        let mut request = self.agent.get(url);
        if let Some(bearer) = self.bearer()? {
            request = request.header("Authorization", bearer);
        }
        let patience = Some(time + Duration::from_secs(10));
        let request = request.config().timeout_global(patience).build();
        let response = request.call().map_err(unreachable)?;
        if response.status().as_u16() != 200 {
            answer(response)?;
            return Ok(None);
        }
        let mut lines = BufReader::new(response.into_body().into_reader());
        let mut line = Vec::new();
        loop {
            line.clear();
            let mut bounded = (&mut lines).take(MAX_EVENT);
            let count = bounded.read_until(b'\n', &mut line).unwrap_or(0);
            // The server has ended the watch, or the time is over.
            if count == 0 || line.last() != Some(&b'\n') {
                return Ok(None);
            }
            let mut event: Value = parse(&line)?;
            let kind = event.get("type").and_then(Value::as_str).unwrap_or("");
            let kind = kind.to_owned();
            let object = event.get_mut("object").map(Value::take).unwrap_or_default();
            if kind == "ERROR" {
                let code = object.get("code").and_then(Value::as_u64);
                let code = code.and_then(|code| u16::try_from(code).ok());
                return Err(refusal(code.unwrap_or(GONE), &object));
            }
            if let ControlFlow::Break(found) = seen(Event { kind, object }) {
                return Ok(Some(found));
            }
        }
    }
}

fn unreachable(error: ureq::Error) -> Error {
    Error::Server(error.to_string())
}

fn parse(bytes: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(bytes).map_err(|error| Error::Answer(error.to_string()))
}

fn answer(mut response: ureq::http::Response<ureq::Body>) -> Result<Value, Error> {
    let code = response.status().as_u16();
    let body = response.body_mut().with_config().limit(MAX_RESPONSE);
    let body = body.read_to_vec().map_err(unreachable)?;
    if (200..300).contains(&code) {
        return parse(&body);
    }
    let status = parse(&body).unwrap_or_default();
    Err(refusal(code, &status))
}

fn refusal(code: u16, status: &Value) -> Error {
    let message = status.get("message").and_then(Value::as_str);
    Error::Refused {
        code,
        message: message.unwrap_or("no reason was given").to_owned(),
    }
}

/// The text at a path of an object, such as `/metadata/uid`.
#[must_use]
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    let found = object.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or("")
}

/// The path of a claim.
#[must_use]
pub fn claim_path(namespace: &str, name: &str) -> String {
    format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_asked_in_a_way_that_proves_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let made = |server: &str, ca: bool, token: bool| {
            Api::new(Options {
                server: server.into(),
                ca: ca.then(|| file.clone()),
                token: token.then(|| file.clone()),
            })
        };
        for (server, ca, token) in [
            ("http://server", false, false),
            ("https://server", true, true),
        ] {
            assert!(made(server, ca, token).is_ok(), "{server} {ca} {token}");
        }
        for (server, ca, token) in [
            ("https://server", false, false),
            ("http://server", true, false),
            ("http://server", false, true),
            ("server", false, false),
            ("server:6443", false, false),
            ("https://", true, false),
            ("tcp://server", false, false),
        ] {
            assert!(made(server, ca, token).is_err(), "{server} {ca} {token}");
        }
    }
}
