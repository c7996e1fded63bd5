//! Calls a driver's plugin as the kubelet does, for tests: `kubelet SOCKET info`, or
//! `kubelet SOCKET prepare|unprepare NAMESPACE NAME UID`. Prints CDI devices on standard
//! output, and the plugin's error on standard error.

use std::path::PathBuf;
use std::process::ExitCode;

use hyper_util::rt::TokioIo;
use paragpu_kubernetes::grpc::dra::DRAPluginClient;
use paragpu_kubernetes::grpc::dra::{
    Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
};
use paragpu_kubernetes::grpc::registration::InfoRequest;
use paragpu_kubernetes::grpc::registration::registration_client::RegistrationClient;
use tokio::net::UnixStream;
use tonic::transport::{Endpoint, Uri};

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    let done = runtime
        .map_err(Failure::from)
        .and_then(|runtime| runtime.block_on(call(&arguments)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn call(arguments: &[String]) -> Result<(), Failure> {
    let (socket, rest) = arguments.split_first().ok_or("give a socket")?;
    let socket = PathBuf::from(socket);
    let connect = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://kubelet");
    let channel = endpoint.connect_with_connector(connect).await?;
    if rest == ["info"] {
        let mut registration = RegistrationClient::new(channel);
        let info = registration.get_info(InfoRequest {}).await?.into_inner();
        println!("{} {} {}", info.r#type, info.name, info.endpoint);
        return Ok(());
    }
    let [verb, namespace, name, uid] = rest else {
        return Err("give a call and a claim".into());
    };
    let claims = vec![Claim {
        namespace: namespace.clone(),
        name: name.clone(),
        uid: uid.clone(),
    }];
    let mut driver = DRAPluginClient::new(channel);
    let error = if verb == "prepare" {
        let request = NodePrepareResourcesRequest { claims };
        let answer = driver.node_prepare_resources(request).await?.into_inner();
        let answer = answer.claims.into_values().next().ok_or("no answer")?;
        for device in &answer.devices {
            println!("{}", device.cdi_device_ids.join(" "));
        }
        answer.error
    } else {
        let request = NodeUnprepareResourcesRequest { claims };
        let answer = driver.node_unprepare_resources(request).await?.into_inner();
        answer.claims.into_values().next().ok_or("no answer")?.error
    };
    match error.is_empty() {
        true => Ok(()),
        false => Err(error.into()),
    }
}
