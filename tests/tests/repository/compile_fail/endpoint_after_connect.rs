//! Connecting consumes the endpoint.
use consort_transports::{Address, Endpoint, TransportError};

fn twice(endpoint: Box<dyn Endpoint>, peer: &Address) -> Result<(), TransportError> {
    let _first = endpoint.connect(peer)?;
    let _second = endpoint.connect(peer)?;
    Ok(())
}

fn main() {
    let _ = twice;
}
