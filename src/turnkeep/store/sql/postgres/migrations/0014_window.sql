-- What the engine reports of a turn that it ran, as JSON: how the answer ended, how the model was given the attached
-- files, and where the window of the conversation begins. A turn about which there is nothing to say has no row.
--
-- It is a table of its own because servers of the release before send whole rows of `turns`: a column more would break
-- them while they are replaced.

CREATE TABLE turnkeep.turn_reports (
    turn_id         text COLLATE "C" PRIMARY KEY REFERENCES turnkeep.turns ON DELETE CASCADE,
    org_id          text COLLATE "C" NOT NULL,
    conversation_id text COLLATE "C" NOT NULL,
    report          text NOT NULL
);
