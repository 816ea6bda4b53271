//! Connections of simulated processes, which are made without waiting, and calls of ranks over them.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::task::Poll;

use consort_control::bootstrap;
use consort_transports::simnet::{Dialling, Network, Node, Stream};

/// What a rank says that answers a call.
pub(super) const ANSWER: u8 = 1;

/// A call of another rank.
pub(super) struct Call {
    line: Line,
    /// Bytes of this rank's number that it has.
    sent: usize,
}

impl Call {
    pub(super) fn new(line: Line) -> Self {
        Call { line, sent: 0 }
    }

    /// Goes on; ready when the other one has this rank's number, or when it has answered if it `answers`.
    pub(super) fn poll(&mut self, hello: &[u8], answers: bool) -> Poll<io::Result<Stream>> {
        match self.line.poll() {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        }
        let Line::Up(stream) = &mut self.line else { return Poll::Pending };
        while self.sent < hello.len() {
            match stream.write(&hello[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        match if answers { stream.read(&mut [0]) } else { Ok(1) } {
            Ok(0) => return Poll::Ready(Err(ErrorKind::PermissionDenied.into())),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Poll::Pending,
            Err(error) => return Poll::Ready(Err(error)),
        }
        match std::mem::replace(&mut self.line, Line::Over) {
            Line::Up(stream) => Poll::Ready(Ok(stream)),
            _ => Poll::Pending,
        }
    }
}

pub(super) enum Line {
    Dialling(Dialling),
    Up(Stream),
    /// It was given away.
    Over,
}

impl Line {
    pub(super) fn dial(network: &Network, node: Node, address: SocketAddr) -> Self {
        Line::Dialling(network.dial(node, address))
    }

    pub(super) fn poll(&mut self) -> Poll<io::Result<()>> {
        let Line::Dialling(dialling) = self else { return Poll::Ready(Ok(())) };
        dialling.poll().map(|stream| stream.map(|stream| *self = Line::Up(stream)))
    }
}

impl Read for Line {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Line::Dialling(_) | Line::Over => Err(ErrorKind::WouldBlock.into()),
            Line::Up(stream) => stream.read(buffer),
        }
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Line::Dialling(_) | Line::Over => Err(ErrorKind::WouldBlock.into()),
            Line::Up(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl bootstrap::Stream for Line {
    fn shutdown_write(&self) -> io::Result<()> {
        if let Line::Up(stream) = self {
            stream.shutdown_write();
        }
        Ok(())
    }

    fn shutdown_both(&self) {
        if let Line::Up(stream) = self {
            stream.shutdown_both();
        }
    }
}
