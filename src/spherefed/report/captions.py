"""The captions of figures and tables."""

BEST = "A row is marked best only if the 95 % interval of its paired difference to every other row excludes 0."
FINAL = (
    "Small dots are seeds. The large mark is their mean with its 95 % interval: a circle after training, a diamond "
    "after calibration."
)
ALL_ACCURACIES = "The name states the model, the data and the weights of the mean."
ROUNDS = (
    "The global model on the test set at the evaluated rounds: mean over seeds, with the 95 % interval as a band. "
    "Diamonds to the right of the last round show the model after calibration."
)
BYTES = "The same curves against what a client has sent and received. A diamond includes its training."
SECONDS = "The same curves against computing time, evaluation included. Compare times of one machine only."
LOSS = (
    "Mean training loss of the clients, relative to the first round of each method. Different losses cannot be "
    "compared by their values. A schedule that lowers the learning rate makes it rise in the last rounds: it is a mean "
    "over the steps of a round, in which clients then move less from the global model towards their own data."
)
NO_TEST_SET = "These runs have no test set that could be evaluated in every round."
TARGETS = (
    "The first evaluated round at which training reaches the accuracy, with bytes per client and seconds so far: mean "
    "over the seeds that reach it."
)
CLIENTS = "The left end of a curve is the client with the lowest accuracy; all seeds together."
CONSISTENCY = (
    "Agreement of the heads that clients send back: mean cosine between clients (Eq. 2) and mean difference of norms "
    "(Eq. 3), over classes. A fixed head agrees by construction (cosine 1, difference 0) and is not drawn."
)
CLASSES = "Share of the test examples of each class that are classified correctly, all seeds together."
SPECTRUM = (
    "Eigenvalues of V = Σ z zᵀ over the unit features of all clients, largest first, for the first seed. A horizontal "
    "line is λ of Eq. 12. Crosses are directions that the solve left out because they are zero up to rounding."
)
TRAFFIC = (
    "Bytes that a client sends and receives in the whole run, measured from the messages: mean over clients and seeds. "
    "The row of a calibrated model includes its training."
)
DIFFERENCES = "Fields of the experiments that differ, the seed apart. A dash: the experiment has no such field."
REPRODUCING = (
    "A run can be repeated from its experiment and seed. Equal partition digests mean equal partitions. On the same "
    "type of machine, a repeated run has the same weights."
)
