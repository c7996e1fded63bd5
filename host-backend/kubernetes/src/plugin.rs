//! The kubelet's gRPC: registration, and the driver's two calls.

use std::collections::HashMap;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use paragpu_protocol::chain;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::grpc::dra::{self, DRAPlugin, DRAPluginServer};
use crate::grpc::registration;
use crate::grpc::registration::registration_server::{Registration, RegistrationServer};
use crate::node::{ClaimName, Node};
use crate::{DRIVER, Error};

/// How long calls in flight may take after the process was asked to end.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The sockets of the plugin.
#[derive(Debug, Clone)]
pub struct Sockets {
    /// The driver's socket.
    pub driver: PathBuf,
    /// The registration socket, in the directory that the kubelet searches for plugins.
    pub registration: PathBuf,
}

impl Sockets {
    /// The sockets for a kubelet with this directory.
    #[must_use]
    pub fn of(kubelet: &Path) -> Self {
        Self {
            driver: kubelet.join("plugins").join(DRIVER).join("dra.sock"),
            registration: kubelet
                .join("plugins_registry")
                .join(format!("{DRIVER}-reg.sock")),
        }
    }
}

#[derive(Debug)]
struct Driver {
    node: Arc<Node>,
}

impl Driver {
    /// Works on the claims of a request, each in a blocking thread, because it waits for
    /// the API server. Returns the outcomes by uid.
    async fn each<T: Send + 'static>(
        &self,
        claims: Vec<dra::Claim>,
        work: fn(&Node, &ClaimName) -> T,
    ) -> Result<HashMap<String, T>, Status> {
        let begin = |claim: dra::Claim| {
            let (node, uid) = (Arc::clone(&self.node), claim.uid.clone());
            let work = move || work(&node, &named(claim));
            (uid, tokio::task::spawn_blocking(work))
        };
        let begun: Vec<_> = claims.into_iter().map(begin).collect();
        let mut done = HashMap::new();
        for (uid, task) in begun {
            let ended = task.await;
            done.insert(
                uid,
                ended.map_err(|error| Status::internal(error.to_string()))?,
            );
        }
        Ok(done)
    }
}

fn named(claim: dra::Claim) -> ClaimName {
    ClaimName {
        namespace: claim.namespace,
        name: claim.name,
        uid: claim.uid,
    }
}

#[tonic::async_trait]
impl DRAPlugin for Driver {
    async fn node_prepare_resources(
        &self,
        request: Request<dra::NodePrepareResourcesRequest>,
    ) -> Result<Response<dra::NodePrepareResourcesResponse>, Status> {
        let mut claims = HashMap::new();
        let prepared = self.each(request.into_inner().claims, Node::prepare);
        for (uid, prepared) in prepared.await? {
            let answer = match prepared {
                Ok(prepared) => dra::NodePrepareResourceResponse {
                    devices: vec![dra::Device {
                        request_names: vec![prepared.share.request],
                        pool_name: prepared.share.pool,
                        device_name: prepared.share.device,
                        cdi_device_ids: vec![prepared.device],
                        share_id: prepared.share.id,
                    }],
                    error: String::new(),
                },
                Err(error) => {
                    let error = chain(&error);
                    tracing::warn!(claim = uid, error, "a claim cannot be prepared");
                    dra::NodePrepareResourceResponse {
                        devices: Vec::new(),
                        error,
                    }
                }
            };
            claims.insert(uid, answer);
        }
        Ok(Response::new(dra::NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<dra::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<dra::NodeUnprepareResourcesResponse>, Status> {
        let unprepared = self.each(request.into_inner().claims, Node::unprepare);
        let answer = |(uid, done): (String, Result<(), Error>)| {
            let error = done.err().map_or_else(String::new, |error| chain(&error));
            (uid, dra::NodeUnprepareResourceResponse { error })
        };
        let claims = unprepared.await?.into_iter().map(answer).collect();
        Ok(Response::new(dra::NodeUnprepareResourcesResponse {
            claims,
        }))
    }
}

#[derive(Debug)]
struct Registrar {
    endpoint: String,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(
        &self,
        _: Request<registration::InfoRequest>,
    ) -> Result<Response<registration::PluginInfo>, Status> {
        Ok(Response::new(registration::PluginInfo {
            r#type: "DRAPlugin".into(),
            name: DRIVER.into(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec!["v1.DRAPlugin".into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<registration::RegistrationStatus>,
    ) -> Result<Response<registration::RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        match status.plugin_registered {
            true => tracing::info!("the kubelet has registered the driver"),
            false => tracing::error!(error = status.error, "the kubelet refuses the driver"),
        }
        Ok(Response::new(registration::RegistrationStatusResponse {}))
    }
}

/// Listens on a socket. Replaces that of an earlier process.
pub(crate) fn listen(path: &Path) -> Result<UnixListenerStream, Error> {
    if let Some(parent) = path.parent() {
        let mut builder = std::fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o750).create(parent);
        made.map_err(Error::file(parent))?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::file(path)(error));
        }
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(Error::file(path))?;
    Ok(UnixListenerStream::new(listener))
}

/// Serves the kubelet until `end`. The registration socket is created last and removed
/// first, because the kubelet calls the driver while it exists. Calls in flight at the end
/// may take [`SHUTDOWN_TIMEOUT`]; the kubelet repeats those that are cut off.
pub fn serve(node: Node, sockets: &Sockets, end: impl Future<Output = ()>) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Sockets(error.to_string()))?;
    let done = runtime.block_on(serve_until(node, sockets, end));
    // Calls that take longer end with the process.
    runtime.shutdown_background();
    done
}

async fn serve_until(
    node: Node,
    sockets: &Sockets,
    end: impl Future<Output = ()>,
) -> Result<(), Error> {
    let driver = DRAPluginServer::new(Driver {
        node: Arc::new(node),
    });
    let registrar = RegistrationServer::new(Registrar {
        endpoint: sockets.driver.to_string_lossy().into_owned(),
    });
    let (stop, stopped) = watch::channel(());
    let over = |mut stopped: watch::Receiver<()>| async move { drop(stopped.changed().await) };
    let calls = Server::builder()
        .add_service(driver)
        .serve_with_incoming_shutdown(listen(&sockets.driver)?, over(stopped.clone()));
    let registrations = Server::builder()
        .add_service(registrar)
        .serve_with_incoming_shutdown(listen(&sockets.registration)?, over(stopped));
    let mut served = pin!(async { tokio::try_join!(calls, registrations) });
    let done = tokio::select! {
        served = &mut served => served,
        () = end => {
            let _ = std::fs::remove_file(&sockets.registration);
            drop(stop);
            match timeout(SHUTDOWN_TIMEOUT, served).await {
                Ok(served) => served,
                Err(_) => Ok(((), ())),
            }
        }
    };
    for socket in [&sockets.registration, &sockets.driver] {
        let _ = std::fs::remove_file(socket);
    }
    done.map(drop)
        .map_err(|error| Error::Sockets(error.to_string()))
}
