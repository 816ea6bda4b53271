//! The gradient of a whole model, in f64, and where its parameters lie.

use std::thread::sleep;
use std::time::Duration;

use consort::Communicator;
use consort::experts::ExpertOptions;

use super::*;
use crate::error::Error;
use crate::parameters::{Local, Present, Rule, Values};
use crate::random::Random;
use crate::routes::Sent;

const SEED: u64 = 20_261_129;

fn shape(tied: bool) -> Shape {
    Shape {
        vocabulary: 11,
        width: 8,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        hidden: 12,
        sequence: 6,
        experts: None,
        tied,
        rope_base: 100.0,
        norm_epsilon: 1e-5,
    }
}

fn tokens(name: &str, count: usize) -> Vec<u32> {
    let random = Random::new(SEED, name);
    (0..count as u64).map(|index| random.below(index, 11) as u32).collect()
}

/// Weights that are far from the beginning's, so that every layer matters.
fn weights(model: &Model<f64>) -> Values<f64> {
    let mut weights = Values::zeros(model.layout()).unwrap();
    for (id, parameter) in model.layout().parameters() {
        let random = Random::new(SEED, &parameter.name);
        for (index, value) in (0..).zip(weights.of_mut(model.layout(), id)) {
            *value = 0.4 * random.normal(index) + if parameter.decays() { 0.0 } else { 1.0 };
        }
    }
    weights
}

/// Forward of a model on a rank that is alone.
fn forward(
    model: &Model<f64>,
    weights: &Values<f64>,
    data: &[u32],
    (kept, room): (&mut Activations<f64>, &mut Workspace<f64>),
) {
    let mut present = Present::new(model.layout(), weights);
    model.forward(0, (&mut present, &Ranks::alone(6)), data, kept, room).unwrap();
}

/// Backward of a model on a rank that is alone.
fn backward(
    model: &Model<f64>,
    weights: &Values<f64>,
    given: (&[u32], &[u32], f64),
    rooms: (&mut Activations<f64>, &mut Workspace<f64>),
    gradients: &mut dyn Gradients<f64>,
) {
    let mut present = Present::new(model.layout(), weights);
    model.backward(0, (&mut present, &Ranks::alone(6)), given, rooms, gradients).unwrap();
}

/// Ways to the experts of a rank that has all.
fn routes(model: &Model<f64>, tokens: usize) -> Option<Box<dyn Routes<f64>>> {
    let Experts { count, top_k } = model.shape().experts?;
    let options = ExpertOptions::new(count as u32, model.shape().width, top_k, tokens);
    Some(f64::routes(&Communicator::local(1).unwrap()[0], options).unwrap())
}

#[test]
fn gradients_are_those_of_the_loss() {
    let experts = |count, top_k| Shape { experts: Some(Experts { count, top_k }), ..shape(false) };
    for shape in [shape(false), shape(true), experts(4, 2), experts(3, 3), experts(2, 1), experts(4, 1)] {
        let model = Model::new(shape, 100).unwrap();
        let layout = model.layout();
        let (data, targets) = (tokens("tokens", 12), tokens("targets", 12));
        let mut weights = weights(&model);
        let mut gradients = Values::zeros(layout).unwrap();
        let mut kept = model.activations(0, 2);
        let mut room = model.workspace(2).with_routes(routes(&model, 12));
        forward(&model, &weights, &data, (&mut kept, &mut room));
        model.loss(&Ranks::alone(6), &targets, &mut kept).unwrap();
        let mut local = Local::new(layout, &mut gradients, Tensor::default());
        backward(&model, &weights, (&data, &targets, 0.5), (&mut kept, &mut room), &mut local);
        for (id, parameter) in layout.parameters() {
            if let Rule::Balanced { top_k, .. } = parameter.rule {
                let loads: f64 = gradients.of(layout, id).iter().sum();
                assert_eq!(loads, (12 * top_k) as f64, "each token goes to {top_k}");
                continue;
            }
            let learns = gradients.of(layout, id).iter().any(|gradient| *gradient != 0.0);
            assert!(learns || parameter.name.contains("experts"), "{} learns nothing", parameter.name);
            // A prime distance between the elements that are looked at.
            for index in (0..parameter.elements()).step_by(7) {
                let original = weights.of(layout, id)[index];
                let mut loss = |change: f64| {
                    weights.of_mut(layout, id)[index] = original + change;
                    forward(&model, &weights, &data, (&mut kept, &mut room));
                    0.5 * model.loss(&Ranks::alone(6), &targets, &mut kept).unwrap()
                };
                // Of two distances, so that the third derivative, large where a norm divides by little, has no part in it.
                let mut slope = |change: f64| (loss(change) - loss(-change)) / (2.0 * change);
                let difference = (4.0 * slope(1e-5) - slope(2e-5)) / 3.0;
                loss(0.0);
                let found = gradients.of(layout, id)[index];
                assert!(
                    (found - difference).abs() < 1e-7 * (1.0 + difference.abs()),
                    "seed {SEED}: {}[{index}]: {found} and by difference {difference}",
                    parameter.name
                );
            }
        }
    }
}

/// Gradients that note the order in which they are finished.
struct Noting<'a> {
    local: Local<'a, f64>,
    finished: Vec<ParameterId>,
}

impl Gradients<f64> for Noting<'_> {
    fn place(&mut self, id: ParameterId) -> &mut [f64] {
        assert!(!self.finished.contains(&id), "a gradient changes after it was finished");
        self.local.place(id)
    }

    fn finished(&mut self, id: ParameterId) -> Result<()> {
        self.finished.push(id);
        Ok(())
    }
}

#[test]
fn gradients_are_finished_in_the_order_of_the_layout() {
    let mixed = Shape { experts: Some(Experts { count: 2, top_k: 1 }), ..shape(false) };
    // A block has nine parameters; with two experts six matrices in the place of three, the router and the biases.
    for (given, of_blocks) in [(shape(false), 18), (shape(true), 18), (mixed, 2 * (9 - 3 + 2 * 3 + 2))] {
        let tied = given.tied;
        let model = Model::new(given, 100).unwrap();
        let weights = weights(&model);
        let mut values = Values::zeros(model.layout()).unwrap();
        let mut noting = Noting {
            local: Local::new(model.layout(), &mut values, Tensor::default()),
            finished: Vec::new(),
        };
        let (mut kept, mut room) =
            (model.activations(0, 1), model.workspace(1).with_routes(routes(&model, 6)));
        let data = tokens("tokens", 6);
        forward(&model, &weights, &data, (&mut kept, &mut room));
        model.loss(&Ranks::alone(6), &data, &mut kept).unwrap();
        backward(&model, &weights, (&data, &data, 1.0), (&mut kept, &mut room), &mut noting);
        let layout: Vec<ParameterId> = model.layout().parameters().map(|(id, _)| id).collect();
        assert_eq!(noting.finished, layout);
        assert_eq!(layout.len(), 1 + of_blocks + 1 + usize::from(!tied));
    }
}

/// Ways to experts that take a while.
struct Slow(Box<dyn Routes<f64>>);

/// What each way takes at least.
const WHILE: Duration = Duration::from_millis(2);

impl Routes<f64> for Slow {
    fn dispatch(
        &mut self,
        tokens: &[f64],
        choices: &[i32],
        weights: &[f64],
        rows: &mut Vec<f64>,
    ) -> consort::Result<Sent> {
        sleep(WHILE);
        self.0.dispatch(tokens, choices, weights, rows)
    }

    fn combine(&mut self, sent: &Sent, outputs: &[f64], sums: &mut [f64]) -> consort::Result<()> {
        sleep(WHILE);
        self.0.combine(sent, outputs, sums)
    }

    fn combine_gradient(
        &mut self,
        sent: &Sent,
        of: (&[f64], &[f64]),
        d_outputs: &mut Vec<f64>,
        d_weights: &mut [f64],
    ) -> consort::Result<()> {
        sleep(WHILE);
        self.0.combine_gradient(sent, of, d_outputs, d_weights)
    }

    fn dispatch_gradient(
        &mut self,
        sent: &Sent,
        d_rows: &[f64],
        d_tokens: &mut [f64],
    ) -> consort::Result<()> {
        sleep(WHILE);
        self.0.dispatch_gradient(sent, d_rows, d_tokens)
    }

    fn sent_bytes(&self) -> usize {
        self.0.sent_bytes()
    }
}

#[test]
fn ways_to_experts_and_back_are_waited_for() {
    let shape = Shape { experts: Some(Experts { count: 2, top_k: 1 }), ..shape(false) };
    let model = Model::new(shape, 100).unwrap();
    let (weights, data) = (weights(&model), tokens("tokens", 6));
    let slow = Slow(routes(&model, 6).expect("experts"));
    let mut kept = model.activations(0, 1);
    let mut room = model.workspace(1).with_routes(Some(Box::new(slow)));
    let account = Account::default();
    let ranks = Ranks { routed: Some(&account), ..Ranks::alone(6) };
    let mut present = Present::new(model.layout(), &weights);
    model.forward(0, (&mut present, &ranks), &data, &mut kept, &mut room).unwrap();
    // Two blocks, each with a way there and one back.
    let forward = account.waited();
    assert!(forward >= 4 * WHILE, "{forward:?}");
    model.loss(&ranks, &data, &mut kept).unwrap();
    let mut gradients = Values::zeros(model.layout()).unwrap();
    let mut local = Local::new(model.layout(), &mut gradients, Tensor::default());
    let given = (&data[..], &data[..], 1.0);
    model.backward(0, (&mut present, &ranks), given, (&mut kept, &mut room), &mut local).unwrap();
    assert!(account.waited() >= forward + 4 * WHILE, "{:?} after {forward:?}", account.waited());
}

#[test]
fn a_token_changes_no_logits_before_it() {
    let model = Model::new(shape(false), 100).unwrap();
    let weights = weights(&model);
    let (mut kept, mut room) = (model.activations(0, 1), model.workspace(1));
    let mut data = tokens("tokens", 6);
    forward(&model, &weights, &data, (&mut kept, &mut room));
    let before = kept.logits().to_vec();
    data[4] = (data[4] + 1) % 11;
    forward(&model, &weights, &data, (&mut kept, &mut room));
    assert_eq!(before[..4 * 11], kept.logits()[..4 * 11]);
    assert_ne!(before[4 * 11..5 * 11], kept.logits()[4 * 11..5 * 11]);
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    let wrong = [
        Shape { heads: 3, ..shape(false) },
        Shape { kv_heads: 3, ..shape(false) },
        Shape { width: 4, ..shape(false) },
        Shape { sequence: 0, ..shape(false) },
    ];
    for shape in wrong {
        assert!(matches!(Model::<f32>::new(shape, 100), Err(Error::Configuration { .. })), "{shape:?}");
    }
}

#[test]
fn operations_are_six_for_each_weight_and_what_attention_needs() {
    let shape = shape(true);
    let model = Model::<f32>::new(shape, 100).unwrap();
    let matrices: usize = model
        .layout()
        .parameters()
        .filter(|(_, parameter)| parameter.decays())
        .map(|(_, p)| p.elements())
        .sum();
    let attention = 2 * 6 * 8 * 6;
    assert_eq!(shape.operations_per_token(), (6 * matrices + attention) as f64);
}
