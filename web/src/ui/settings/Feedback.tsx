/** What the users of the workspace think of answers, for admins, with files for evaluations. */
import { useCallback, useState } from "react";

import type { FeedbackItem, Rating } from "@turnkeep/client";
import { feedback } from "../../effects/requests";
import { timeInWords, words } from "../../words";
import { useSelect } from "../context";
import { SelectField } from "../forms";
import { Icon } from "../Icon";
import { LoadStatus, MoreButton, useLoadedList } from "../requestState";
import { RouteLink } from "../RouteLink";

export function FeedbackSection() {
  const [rating, setRating] = useState<Rating | null>(null);
  const found = useLoadedList(useCallback((cursor: string | null) => feedback(rating, cursor), [rating]));
  return (
    <>
      <div className="intro">
        <p className="faint">{words.feedback.intro}</p>
        {(["csv", "jsonl"] as const).map((format) => (
          <a key={format} className="button" href={`/v1/feedback?format=${format}`} download={`feedback.${format}`}>
            {words.feedback.formats[format]}
          </a>
        ))}
      </div>
      <SelectField label={words.feedback.which} value={rating ?? ""} onChange={(value) => setRating(value === "up" || value === "down" ? value : null)}>
        <option value="">{words.feedback.all}</option>
        <option value="up">{words.feedback.up}</option>
        <option value="down">{words.feedback.down}</option>
      </SelectField>
      {found.items ? (
        <ul className="items" aria-label={words.feedback.list}>
          {found.items.map((item) => (
            <Item key={`${item.turn_id} ${item.user?.id}`} item={item} />
          ))}
        </ul>
      ) : (
        <LoadStatus error={found.error} onRetry={found.reload} />
      )}
      {found.items?.length === 0 && <p className="faint">{words.feedback.none}</p>}
      <MoreButton list={found} label={words.feedback.more} />
    </>
  );
}

function Item({ item }: { item: FeedbackItem }) {
  const agent = useSelect((state) => state.agents.find((one) => one.id === item.agent_id)?.name ?? null);
  const isUp = item.rating === "up";
  return (
    <li className="item feedback-item">
      <span className={isUp ? "feedback-mark" : "feedback-mark is-failure"} role="img" aria-label={isUp ? words.feedback.up : words.feedback.down}>
        <Icon name={isUp ? "thumbUp" : "thumbDown"} />
      </span>
      <div className="item-text is-wrapped">
        <strong dir="auto">{item.comment ?? words.feedback.noWords}</strong>
        <span className="faint">{[item.user?.name ?? item.user?.external_id, agent, item.model, timeInWords(item.updated_at)].filter(Boolean).join(" · ")}</span>
      </div>
      <RouteLink className="tool" route={{ page: "timeline", turnId: item.turn_id }} aria-label={words.timeline.title} title={words.timeline.title}>
        <Icon name="clock" />
      </RouteLink>
    </li>
  );
}
