//! The kubelet's gRPC: registration, and the driver's two calls.

use std::collections::HashMap;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::node::{Named, Node};
use crate::{DRIVER, Error};

/// What the kubelet asks a driver.
#[allow(missing_docs, reason = "generated")]
pub mod dra {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

/// What the kubelet asks a plugin that it finds.
#[allow(missing_docs, reason = "generated")]
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

use dra::dra_plugin_server::{DraPlugin, DraPluginServer};
use registration::registration_server::{Registration, RegistrationServer};

/// The sockets.
#[derive(Debug, Clone)]
pub struct Sockets {
    /// Of the driver.
    pub driver: PathBuf,
    /// Where the kubelet looks for plugins.
    pub registration: PathBuf,
}

impl Sockets {
    /// Where the kubelet of this directory looks.
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

#[derive(Debug, Clone)]
struct Driver {
    node: Arc<Node>,
}

impl Driver {
    /// Runs what waits for the API server beside the sockets.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Node) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let node = Arc::clone(&self.node);
        let done = tokio::task::spawn_blocking(move || work(&node)).await;
        done.map_err(|error| Status::internal(error.to_string()))
    }
}

fn named(claim: dra::Claim) -> Named {
    Named {
        namespace: claim.namespace,
        name: claim.name,
        uid: claim.uid,
    }
}

#[tonic::async_trait]
impl DraPlugin for Driver {
    async fn node_prepare_resources(
        &self,
        request: Request<dra::NodePrepareResourcesRequest>,
    ) -> Result<Response<dra::NodePrepareResourcesResponse>, Status> {
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims.into_iter().map(named) {
            let uid = claim.uid.clone();
            let prepared = self.run(move |node| node.prepare(&claim)).await?;
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
                    tracing::warn!(claim = uid, %error, "a claim is not prepared");
                    dra::NodePrepareResourceResponse {
                        devices: Vec::new(),
                        error: error.to_string(),
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
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims.into_iter().map(named) {
            let uid = claim.uid.clone();
            let done = self.run(move |node| node.unprepare(&claim)).await?;
            let error = done.err().map(|error| error.to_string());
            let error = error.unwrap_or_default();
            claims.insert(uid, dra::NodeUnprepareResourceResponse { error });
        }
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
            true => tracing::info!("the kubelet knows the driver"),
            false => tracing::error!(error = status.error, "the kubelet refuses the driver"),
        }
        Ok(Response::new(registration::RegistrationStatusResponse {}))
    }
}

/// A socket in place of that of an earlier process.
fn listen(path: &Path) -> Result<UnixListenerStream, Error> {
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

/// Serves the kubelet until `end`. The registration's socket comes last and
/// goes first, because the kubelet calls the driver as soon as it is there.
/// Calls that wait then are not waited for: the kubelet repeats them.
///
/// # Errors
/// [`Error`].
pub fn serve(node: Node, sockets: &Sockets, end: impl Future<Output = ()>) -> Result<(), Error> {
    let failed = |error: &dyn std::fmt::Display| Error::Sockets(error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(|error| failed(&error))?;
    let done = runtime.block_on(async {
        let driver = Driver {
            node: Arc::new(node),
        };
        let registrar = Registrar {
            endpoint: sockets.driver.to_string_lossy().into_owned(),
        };
        let calls = Server::builder()
            .add_service(DraPluginServer::new(driver))
            .serve_with_incoming(listen(&sockets.driver)?);
        let registrations = Server::builder()
            .add_service(RegistrationServer::new(registrar))
            .serve_with_incoming(listen(&sockets.registration)?);
        let served = tokio::select! {
            served = calls => served,
            served = registrations => served,
            () = end => Ok(()),
        };
        served.map_err(|error| failed(&error))
    });
    let _ = std::fs::remove_file(&sockets.registration);
    runtime.shutdown_background();
    done
}
