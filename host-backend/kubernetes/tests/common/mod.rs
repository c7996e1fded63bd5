//! A stand-in for the API server. It stores claims, versions each change, refuses changes
//! based on old versions, and notifies watches. It checks nothing else.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

#[derive(Default)]
struct Store {
    version: u64,
    claims: BTreeMap<String, Value>,
    /// Each change: its version, kind and object.
    changes: Vec<(u64, &'static str, Value)>,
}

/// The stand-in.
#[derive(Clone)]
pub struct Server {
    address: String,
    store: Arc<(Mutex<Store>, Condvar)>,
}

const PATIENCE: Duration = Duration::from_secs(60);

impl Server {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            address: format!("http://{}", listener.local_addr().unwrap()),
            store: Arc::default(),
        };
        let own = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = own.clone();
                std::thread::spawn(move || server.serve(stream));
            }
        });
        server
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Stores a claim unconditionally.
    pub fn put(&self, name: &str, claim: &Value) {
        self.put_if(name, claim, |_| true);
    }

    /// Stores a claim if the stored one satisfies `wanted`. Returns the claim that is
    /// stored then.
    fn put_if(&self, name: &str, claim: &Value, wanted: impl Fn(&Value) -> bool) -> Option<Value> {
        let (store, changed) = &*self.store;
        let mut store = store.lock().unwrap();
        if !wanted(store.claims.get(name).unwrap_or(&Value::Null)) {
            return None;
        }
        store.version += 1;
        let mut claim = claim.clone();
        claim["metadata"]["resourceVersion"] = json!(store.version.to_string());
        let kind = match store.claims.insert(name.to_owned(), claim.clone()) {
            Some(_) => "MODIFIED",
            None => "ADDED",
        };
        let version = store.version;
        store.changes.push((version, kind, claim.clone()));
        changed.notify_all();
        Some(claim)
    }

    pub fn get(&self, name: &str) -> Value {
        let claim = self.store.0.lock().unwrap().claims.get(name).cloned();
        claim.unwrap_or_default()
    }

    /// Waits until a claim satisfies `wanted`.
    pub fn until(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let (store, changed) = &*self.store;
        let store = store.lock().unwrap();
        let waiting = |store: &mut Store| !store.claims.get(name).is_some_and(&wanted);
        let waited = changed.wait_timeout_while(store, PATIENCE, waiting);
        let (store, time) = waited.unwrap();
        assert!(!time.timed_out(), "{name} is {:?}", store.claims.get(name));
        store.claims[name].clone()
    }

    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let (mut length, mut header) = (0, String::new());
        while reader.read_line(&mut header).unwrap() > 2 {
            let lower = header.to_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            header.clear();
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let mut words = line.split_whitespace();
        let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path: Vec<&str> = path.split('/').skip(4).collect();
        // The name may come from the selector of a watch. There is one namespace.
        match (method, path.as_slice()) {
            ("GET", ["namespaces", _, "resourceclaims", name]) => match self.get(name) {
                Value::Null => answer(&stream, 404, &json!({"message": "it is not found"})),
                claim => answer(&stream, 200, &claim),
            },
            ("PUT", ["namespaces", _, "resourceclaims", name, "status"]) => {
                let claim: Value = serde_json::from_slice(&body).unwrap();
                let version = |claim: &Value| claim["metadata"]["resourceVersion"].clone();
                let same = |there: &Value| version(&claim) == version(there);
                // The response does not contain another change that follows immediately.
                match self.put_if(name, &claim, same) {
                    Some(written) => answer(&stream, 200, &written),
                    None => answer(&stream, 409, &json!({"message": "it has been modified"})),
                }
            }
            ("GET", [.., "resourceclaims"]) if query.contains("watch=true") => {
                self.watch(&stream, query);
            }
            _ => answer(
                &stream,
                404,
                &json!({"message": "there is no such thing here"}),
            ),
        }
    }

    /// Sends changes until the watcher is gone.
    fn watch(&self, mut stream: &TcpStream, query: &str) {
        let part = |name: &str| {
            let mut parts = query.split('&').filter_map(|part| part.split_once('='));
            let found = parts.find(|(key, _)| *key == name);
            found.map_or("", |(_, value)| value).to_owned()
        };
        let mut seen: u64 = part("resourceVersion").parse().unwrap();
        let selected = part("fieldSelector");
        let selected = selected.rsplit('=').next().unwrap();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let (store, changed) = &*self.store;
        loop {
            let events: Vec<_> = {
                let store = store.lock().unwrap();
                let nothing = |store: &mut Store| store.version <= seen;
                let store = changed.wait_while(store, nothing).unwrap();
                let new = store.changes.iter().filter(|(at, _, _)| *at > seen);
                new.cloned().collect()
            };
            for (version, kind, object) in events {
                seen = version;
                if selected.is_empty() || object["metadata"]["name"] == selected {
                    let event = json!({"type": kind, "object": object});
                    if stream.write_all(format!("{event}\n").as_bytes()).is_err() {
                        return;
                    }
                }
            }
        }
    }
}

fn answer(mut stream: &TcpStream, code: u16, object: &Value) {
    let body = object.to_string();
    let text = format!(
        "HTTP/1.1 {code} Said\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.write_all(text.as_bytes());
}
