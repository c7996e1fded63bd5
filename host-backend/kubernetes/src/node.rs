//! The role on a node with Pods: requests a claim's lease, and writes the files with which
//! its containers connect to it.
//!
//! All state that outlives a call is in files, so this role may restart at any time.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;

use crate::Error;
use crate::api::{Api, GONE, claim_path, text};
use crate::claim::{self, Data, Share};
use crate::files::{Files, Places};

/// How long a call waits for a lease. The kubelet retries.
const PATIENCE: Duration = Duration::from_secs(30);

/// The claim that the kubelet names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// A claim that is ready for its containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// The share.
    pub share: Share,
    /// The name of the CDI device.
    pub device: String,
}

/// The role.
#[derive(Debug)]
pub struct Node {
    api: Api,
    name: String,
    places: Places,
    /// Uids of claims that a call is working on.
    busy: Mutex<BTreeSet<String>>,
}

/// The progress of a claim's lease.
enum Progress {
    /// There is a lease.
    Ready(Data),
    /// There is no lease yet, as of this version of the claim.
    Waits(String),
    /// The claim was changed by another writer.
    Changed,
}

/// Marks a claim as being worked on, until it is dropped.
struct Busy<'a> {
    node: &'a Node,
    uid: &'a str,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.node.busy.lock().remove(self.uid);
    }
}

impl Node {
    /// Creates the role for the node with this name.
    ///
    /// # Errors
    /// [`Error`]: the directory for claims cannot be created, or not restricted to root.
    pub fn new(api: Api, name: String, places: Places) -> Result<Self, Error> {
        let claims = &places.claims;
        std::fs::create_dir_all(claims).map_err(Error::file(claims))?;
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(claims, private).map_err(Error::file(claims))?;
        Ok(Self {
            api,
            name,
            places,
            busy: Mutex::default(),
        })
    }

    /// Checks the names that the kubelet gave, and keeps other calls from the claim.
    fn begin<'a>(&'a self, named: &'a ClaimName) -> Result<Busy<'a>, Error> {
        let parts = [&named.namespace, &named.name, &named.uid];
        if !parts.iter().all(|part| claim::is_plain(part)) {
            return Err(Error::Claim("the claim's name or uid is invalid".into()));
        }
        let is_first = self.busy.lock().insert(named.uid.clone());
        match is_first {
            true => Ok(Busy {
                node: self,
                uid: &named.uid,
            }),
            false => Err(Error::Claim("another call is working on this claim".into())),
        }
    }

    /// Makes a claim's lease usable by containers of this node.
    pub fn prepare(&self, named: &ClaimName) -> Result<Prepared, Error> {
        let _busy = self.begin(named)?;
        let path = claim_path(&named.namespace, &named.name);
        let mut claim = self.api.get(&path)?;
        check_uid(&claim, named)?;
        let share = claim::share(&claim).map_err(Error::Claim)?;
        let files = Files::new(&self.places, &named.uid);
        let key = files.key()?;
        let deadline = Instant::now() + PATIENCE;
        let data = loop {
            match self.progress(&path, &claim, &share, &key)? {
                Progress::Ready(data) => break data,
                Progress::Waits(version) => self.wait(named, &version, deadline)?,
                Progress::Changed => {}
            }
            claim = self.api.get(&path)?;
            check_uid(&claim, named)?;
        };
        files.write_for(&data)?;
        Ok(Prepared {
            share,
            device: files.device(),
        })
    }

    /// Requests the lease, or reads the answer.
    fn progress(
        &self,
        path: &str,
        claim: &Value,
        share: &Share,
        key: &str,
    ) -> Result<Progress, Error> {
        if claim::share(claim).ok().as_ref() != Some(share) {
            return Err(Error::Claim("the claim was reallocated".into()));
        }
        let data = claim::data(claim, share);
        if data.key == key {
            return match (data.certificate.is_empty(), data.error.is_empty()) {
                (false, _) => Ok(Progress::Ready(data)),
                (true, false) => Err(Error::Lease(data.error)),
                (true, true) => Ok(Progress::Waits(version(claim))),
            };
        }
        if !data.node.is_empty() && data.node != self.name {
            return Err(Error::Claim(format!(
                "the claim is in use on node {}; it can be used on one node at a time",
                data.node
            )));
        }
        let asked = Data {
            node: self.name.clone(),
            key: key.to_owned(),
            ..Data::default()
        };
        let mut claim = claim.clone();
        claim::set_data(&mut claim, share, &asked);
        match self.api.replace(&format!("{path}/status"), &claim) {
            Ok(written) => Ok(Progress::Waits(version(&written))),
            Err(error) if error.is_conflict() => Ok(Progress::Changed),
            Err(error) => Err(error),
        }
    }

    /// Waits until the claim has changed since `version`.
    fn wait(&self, named: &ClaimName, version: &str, deadline: Instant) -> Result<(), Error> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Lease(
                "the GPU host has not answered the claim".into(),
            ));
        }
        let path = format!(
            "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims?fieldSelector=metadata.name={}",
            named.namespace, named.name
        );
        let seen = self
            .api
            .watch(&path, version, left, |event| match event.kind.as_str() {
                "BOOKMARK" => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            });
        match seen {
            Ok(_) => Ok(()),
            // The version is too old to be watched. The caller reads the claim again.
            Err(Error::Refused { code: GONE, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes the files and the request of [`Node::prepare`]. The GPU host then ends the
    /// lease.
    pub fn unprepare(&self, named: &ClaimName) -> Result<(), Error> {
        let _busy = self.begin(named)?;
        Files::new(&self.places, &named.uid).remove()?;
        let path = claim_path(&named.namespace, &named.name);
        loop {
            let mut claim = match self.api.get(&path) {
                Ok(claim) if text(&claim, "/metadata/uid") == named.uid => claim,
                Ok(_) => return Ok(()),
                Err(error) if error.is_missing() => return Ok(()),
                Err(error) => return Err(error),
            };
            let Ok(share) = claim::share(&claim) else {
                return Ok(());
            };
            if claim::data(&claim, &share).node != self.name {
                return Ok(());
            }
            claim::set_data(&mut claim, &share, &Data::default());
            match self.api.replace(&format!("{path}/status"), &claim) {
                Err(error) if error.is_conflict() => {}
                Err(error) if error.is_missing() => return Ok(()),
                other => return other.map(drop),
            }
        }
    }
}

fn version(claim: &Value) -> String {
    text(claim, "/metadata/resourceVersion").to_owned()
}

fn check_uid(claim: &Value, named: &ClaimName) -> Result<(), Error> {
    match text(claim, "/metadata/uid") == named.uid {
        true => Ok(()),
        false => Err(Error::Claim(
            "the claim of this name is a different one".into(),
        )),
    }
}
