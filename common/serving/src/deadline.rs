//! The layer that tells handlers when their caller gives up.
//!
//! A fired deadline is a fault, never the idle path: tonic answers it with CANCELLED and drops the handler (S78, S79). So
//! this layer turns the `grpc-timeout` header into an absolute time in the request's extensions, and a handler that waits
//! answers before it. The header's unit and form: <https://grpc.github.io/grpc/core/md_doc__p_r_o_t_o_c_o_l-_h_t_t_p2.html>.
//! Deliberately absent: enforcing the deadline, which tonic does.

use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;
use tower::{Layer, Service};

/// When the caller gives up; in the extensions of every request that carries a `grpc-timeout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(pub Instant);

impl Deadline {
    /// The deadline of a request, if it has one.
    #[must_use]
    pub fn of<T>(request: &tonic::Request<T>) -> Option<Instant> {
        request.extensions().get::<Self>().map(|deadline| deadline.0)
    }
}

/// How long before its caller's deadline a call that waits is answered: the answer has to travel, too.
const MARGIN: Duration = Duration::from_millis(50);

/// Of a deadline that is near, the margin takes this part at most.
const MARGIN_SHARE: u32 = 4;

/// The longest wait that still answers before `deadline`, at most `wait` (S79).
#[must_use]
pub fn before_deadline(wait: Duration, deadline: Option<Instant>) -> Duration {
    let Some(deadline) = deadline else { return wait };
    let left = deadline.saturating_duration_since(Instant::now());
    wait.min(left.saturating_sub(MARGIN.min(left / MARGIN_SHARE)))
}

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeadlineLayer;

impl<S> Layer<S> for DeadlineLayer {
    type Service = DeadlineService<S>;

    fn layer(&self, inner: S) -> DeadlineService<S> {
        DeadlineService { inner }
    }
}

/// See [`DeadlineLayer`].
#[derive(Clone, Debug)]
pub struct DeadlineService<S> {
    inner: S,
}

impl<S, B> Service<http::Request<B>> for DeadlineService<S>
where
    S: Service<http::Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<B>) -> S::Future {
        let timeout = request.headers().get("grpc-timeout").and_then(|value| parse(value.to_str().ok()?));
        // A deadline too far away for the clock is none.
        if let Some(deadline) = timeout.and_then(|timeout| Instant::now().checked_add(timeout)) {
            request.extensions_mut().insert(Deadline(deadline));
        }
        self.inner.call(request)
    }
}

/// 1 to 8 digits and a unit; `None` for anything else, which tonic ignores too.
fn parse(text: &str) -> Option<Duration> {
    let (unit, digits) = text.as_bytes().split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    match unit {
        b'H' => Some(Duration::from_secs(value * 3600)),
        b'M' => Some(Duration::from_secs(value * 60)),
        b'S' => Some(Duration::from_secs(value)),
        b'm' => Some(Duration::from_millis(value)),
        b'u' => Some(Duration::from_micros(value)),
        b'n' => Some(Duration::from_nanos(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tower::ServiceExt as _;

    #[tokio::test(start_paused = true)]
    async fn a_timeout_header_becomes_an_absolute_deadline() {
        let seen = |header: Option<&'static str>| async move {
            let echo = tower::service_fn(|request: http::Request<()>| async move {
                Ok::<_, std::convert::Infallible>(request.extensions().get::<Deadline>().copied())
            });
            let mut request = http::Request::new(());
            if let Some(text) = header {
                request.headers_mut().insert("grpc-timeout", http::HeaderValue::from_static(text));
            }
            DeadlineLayer.layer(echo).oneshot(request).await.unwrap()
        };
        let now = Instant::now();
        assert_eq!(seen(Some("2S")).await, Some(Deadline(now + Duration::from_secs(2))));
        assert_eq!(seen(Some("1500m")).await, Some(Deadline(now + Duration::from_millis(1500))));
        assert_eq!(seen(None).await, None);
        for bad in ["", "S", "123456789S", "5x", "-1S", "1.5S"] {
            assert_eq!(seen(Some(bad)).await, None, "{bad}");
        }
    }
}
