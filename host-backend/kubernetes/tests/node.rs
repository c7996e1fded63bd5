//! The node's role as the kubelet sees it: gRPC over its two sockets. The API server is a
//! stand-in, and the test acts as the GPU host.

mod common;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use common::Server;
use hyper_util::rt::TokioIo;
use paragpu_config::Sources;
use paragpu_config::guest::Guest;
use paragpu_kubernetes::DRIVER;
use paragpu_kubernetes::api::{Api, Options};
use paragpu_kubernetes::claim::{self, Data};
use paragpu_kubernetes::files::Places;
use paragpu_kubernetes::grpc::dra::DRAPluginClient;
use paragpu_kubernetes::grpc::dra::{
    Claim, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
};
use paragpu_kubernetes::grpc::registration::registration_client::RegistrationClient;
use paragpu_kubernetes::grpc::registration::{InfoRequest, RegistrationStatus};
use paragpu_kubernetes::node::Node;
use paragpu_kubernetes::plugin::{self, Sockets};
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tonic::transport::{Channel, Endpoint, Uri};

const UID: &str = "3f1c-uid";

/// A plugin with its files, and the kubelet's end of it.
struct Plugin {
    sockets: Sockets,
    places: Places,
    kubelet: Runtime,
    server: JoinHandle<()>,
    end: oneshot::Sender<()>,
}

impl Plugin {
    fn start(server: &Server, directory: &Path, name: &str) -> Self {
        let options = Options {
            server: server.address().to_owned(),
            ..Options::default()
        };
        let places = Places {
            claims: directory.join("claims"),
            cdi: directory.join("cdi"),
            libraries: Some("/usr/lib/paragpu".into()),
        };
        let sockets = Sockets::of(&directory.join("kubelet"));
        let node = Node::new(Api::new(options).unwrap(), name.into(), places.clone()).unwrap();
        let (end, ended) = oneshot::channel::<()>();
        let (own, ready) = (sockets.clone(), sockets.registration.clone());
        let server = std::thread::spawn(move || {
            plugin::serve(node, &own, async { drop(ended.await) }).unwrap();
        });
        // The registration socket is created last.
        while std::os::unix::net::UnixStream::connect(&ready).is_err() {
            std::thread::yield_now();
        }
        let kubelet = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap();
        Self {
            sockets,
            places,
            kubelet,
            server,
            end,
        }
    }

    fn channel(&self, socket: &Path) -> Channel {
        let socket = PathBuf::from(socket);
        let connect = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://kubelet");
        let connected = endpoint.connect_with_connector(connect);
        self.kubelet.block_on(connected).unwrap()
    }

    fn prepare(&self, name: &str, uid: &str) -> NodePrepareResourceResponse {
        let mut driver = DRAPluginClient::new(self.channel(&self.sockets.driver));
        let request = NodePrepareResourcesRequest {
            claims: vec![named(name, uid)],
        };
        let answer = self
            .kubelet
            .block_on(driver.node_prepare_resources(request));
        answer.unwrap().into_inner().claims.remove(uid).unwrap()
    }

    fn unprepare(&self, name: &str, uid: &str) -> String {
        let mut driver = DRAPluginClient::new(self.channel(&self.sockets.driver));
        let request = NodeUnprepareResourcesRequest {
            claims: vec![named(name, uid)],
        };
        let answer = self
            .kubelet
            .block_on(driver.node_unprepare_resources(request));
        let mut claims = answer.unwrap().into_inner().claims;
        claims.remove(uid).unwrap().error
    }

    fn stop(self) {
        drop(self.end);
        // Closes its connections, which the plugin would otherwise serve until its end.
        drop(self.kubelet);
        self.server.join().unwrap();
        for socket in [&self.sockets.registration, &self.sockets.driver] {
            assert!(!socket.exists(), "{}", socket.display());
        }
    }
}

fn named(name: &str, uid: &str) -> Claim {
    Claim {
        namespace: "default".into(),
        name: name.into(),
        uid: uid.into(),
    }
}

fn allocated(name: &str, uid: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": uid},
        "status": {"allocation": {"devices": {"results": [{
            "request": "gpu", "driver": DRIVER, "pool": "gpu1", "device": "gpu-0", "shareID": "s",
            "consumedCapacity": {"memory": "1Gi", "time": "250"},
        }]}}},
    })
}

/// Answers like a GPU host once the claim has the node's key.
fn host(server: &Server, name: &'static str, said: Data) -> JoinHandle<String> {
    let server = server.clone();
    std::thread::spawn(move || {
        let share = |claim: &Value| claim::share(claim).unwrap();
        let mut claim = server.until(name, |claim| {
            let data = claim::data(claim, &share(claim));
            !data.key.is_empty() && data.certificate.is_empty()
        });
        let asked = claim::data(&claim, &share(&claim));
        let key = asked.key.clone();
        let said = Data {
            node: asked.node,
            key: asked.key,
            ..said
        };
        let share = share(&claim);
        claim::set_data(&mut claim, &share, &said);
        server.put(name, &claim);
        key
    })
}

fn granted() -> Data {
    Data {
        endpoint: "gpu1.example:7474".into(),
        authority: "the authority's certificate".into(),
        certificate: "the lease's certificate".into(),
        ..Data::default()
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn the_kubelet_learns_who_the_plugin_is() {
    let directory = tempfile::tempdir().unwrap();
    let plugin = Plugin::start(&Server::start(), directory.path(), "node1");
    let mut registration = RegistrationClient::new(plugin.channel(&plugin.sockets.registration));
    let info = plugin
        .kubelet
        .block_on(registration.get_info(InfoRequest {}));
    let info = info.unwrap().into_inner();
    assert_eq!(
        (info.r#type.as_str(), info.name.as_str()),
        ("DRAPlugin", DRIVER)
    );
    assert_eq!(info.supported_versions, ["v1.DRAPlugin"]);
    assert_eq!(Path::new(&info.endpoint), plugin.sockets.driver);
    let status = RegistrationStatus {
        plugin_registered: true,
        error: String::new(),
    };
    let told = registration.notify_registration_status(status);
    plugin.kubelet.block_on(told).unwrap();
    plugin.stop();
}

#[test]
fn a_claim_is_prepared_once_and_unprepared() {
    let (server, directory) = (Server::start(), tempfile::tempdir().unwrap());
    server.put("mine", &allocated("mine", UID));
    let plugin = Plugin::start(&server, directory.path(), "node1");
    let host = host(&server, "mine", granted());
    let first = plugin.prepare("mine", UID);
    assert_eq!(first.error, "");
    let [device] = first.devices.as_slice() else {
        panic!("{first:?}")
    };
    assert_eq!(device.cdi_device_ids, [format!("{DRIVER}/claim={UID}")]);
    assert_eq!(
        (device.pool_name.as_str(), device.device_name.as_str()),
        ("gpu1", "gpu-0")
    );
    assert_eq!(device.request_names, ["gpu"]);
    assert_eq!(device.share_id.as_deref(), Some("s"));

    let own = plugin.places.claims.join(UID);
    let read = |name: &str| std::fs::read_to_string(own.join(name)).unwrap();
    assert_eq!(
        read("lease.pub"),
        host.join().unwrap(),
        "the host has this key"
    );
    assert!(!server.get("mine").to_string().contains("PRIVATE"));
    assert_eq!(
        (read("ca.pem"), read("lease.pem")),
        (granted().authority, granted().certificate)
    );
    let guest = Sources::only(own.join("guest.toml"))
        .load::<Guest>()
        .unwrap();
    let tcp = guest.values.tcp;
    assert_eq!(tcp.address.0.as_deref(), Some("gpu1.example:7474"));
    assert_eq!((&tcp.key, tcp.key_shared), (&own.join("lease.key"), true));
    // Users of the host have no access; a container's user, inside, can read everything.
    assert_eq!((mode(&plugin.places.claims), mode(&own)), (0o700, 0o755));
    assert_eq!(mode(&tcp.key), 0o644);

    let cdi = plugin.places.cdi.join(format!("{DRIVER}-{UID}.json"));
    let spec: Value = serde_json::from_slice(&std::fs::read(&cdi).unwrap()).unwrap();
    assert_eq!(spec["kind"], format!("{DRIVER}/claim"));
    let edits = &spec["devices"][0]["containerEdits"];
    let configuration = format!("PARAGPU_CONFIG={}", own.join("guest.toml").display());
    assert_eq!(
        edits["env"],
        json!([configuration, "LD_LIBRARY_PATH=/usr/lib/paragpu"])
    );
    assert_eq!(
        edits["mounts"][0]["hostPath"],
        edits["mounts"][0]["containerPath"]
    );

    // The plugin restarts. The kubelet calls again, and nothing changes.
    let (key, version) = (read("lease.key"), server.get("mine"));
    plugin.stop();
    let plugin = Plugin::start(&server, directory.path(), "node1");
    assert_eq!(plugin.prepare("mine", UID), first);
    assert_eq!((read("lease.key"), server.get("mine")), (key, version));

    assert_eq!(plugin.unprepare("mine", UID), "");
    assert!(!own.exists() && !cdi.exists());
    let claim = server.get("mine");
    assert_eq!(
        claim["status"]["devices"],
        json!([]),
        "the host sees no key"
    );
    assert_eq!(
        plugin.unprepare("mine", UID),
        "",
        "twice is as good as once"
    );
    plugin.stop();
}

#[test]
fn a_call_in_flight_is_answered_when_the_plugin_ends() {
    let (server, directory) = (Server::start(), tempfile::tempdir().unwrap());
    server.put("mine", &allocated("mine", UID));
    let mut plugin = Plugin::start(&server, directory.path(), "node1");
    let (end, _) = oneshot::channel();
    let end = std::mem::replace(&mut plugin.end, end);
    let registration = plugin.sockets.registration.clone();
    let host = {
        let server = server.clone();
        std::thread::spawn(move || {
            let share = |claim: &Value| claim::share(claim).unwrap();
            let asked = |claim: &Value| !claim::data(claim, &share(claim)).key.is_empty();
            server.until("mine", asked);
            drop(end);
            while registration.exists() {
                std::thread::yield_now();
            }
            host(&server, "mine", granted()).join().unwrap()
        })
    };
    assert_eq!(plugin.prepare("mine", UID).error, "");
    host.join().unwrap();
    plugin.stop();
}

#[test]
fn a_claim_that_cannot_be_served_says_why() {
    let (server, directory) = (Server::start(), tempfile::tempdir().unwrap());
    let plugin = Plugin::start(&server, directory.path(), "node1");
    let error = |name: &str, uid: &str| plugin.prepare(name, uid).error;
    assert!(
        error("unknown", UID).contains("404"),
        "{}",
        error("unknown", UID)
    );
    assert_eq!(plugin.unprepare("unknown", UID), "");

    server.put("mine", &allocated("mine", UID));
    assert!(error("mine", "other-uid").contains("a different one"));
    for uid in ["..", "a/b", ""] {
        assert!(error("mine", uid).contains("is invalid"), "{uid}");
    }
    server.put(
        "waits",
        &json!({
            "metadata": {"name": "waits", "namespace": "default", "uid": "w"}, "status": {},
        }),
    );
    assert!(error("waits", "w").contains("no device"));

    // A host that refuses the lease.
    let refused = Data {
        error: "this host gives no GPU 0".into(),
        ..Data::default()
    };
    let host = host(&server, "mine", refused);
    assert!(error("mine", UID).contains("this host gives no GPU 0"));
    host.join().unwrap();

    // Another node uses the claim.
    let mut claim = allocated("theirs", "t");
    let share = claim::share(&claim).unwrap();
    let theirs = Data {
        node: "node2".into(),
        key: "k".into(),
        ..Data::default()
    };
    claim::set_data(&mut claim, &share, &theirs);
    server.put("theirs", &claim);
    assert!(error("theirs", "t").contains("node2"));
    assert_eq!(plugin.unprepare("theirs", "t"), "");
    assert_eq!(
        claim::data(&server.get("theirs"), &share),
        theirs,
        "it stays node2's"
    );
    plugin.stop();
}
