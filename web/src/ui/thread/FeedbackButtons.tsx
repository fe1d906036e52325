/** Thumbs below an answer. A rating is stored at once; a comment can be added to it, and the same thumb takes it back. */
import { useState } from "react";

import type { Rating } from "@turnkeep/client";
import { words } from "../../words";
import { useSelect, useServices } from "../context";
import { Icon } from "../Icon";

interface Props {
  threadId: string;
  turnId: string;
  isCommenting: boolean;
  onComment: (isOpen: boolean) => void;
}

export function FeedbackButtons({ threadId, turnId, isCommenting, onComment }: Props) {
  const { ratings } = useServices();
  const mine = useSelect((state) => state.feedback[turnId] ?? null);
  const press = (rating: Rating) => {
    if (mine?.rating === rating) {
      onComment(false);
      void ratings.remove(turnId);
      return;
    }
    onComment(true);
    void ratings.rate(threadId, turnId, rating, mine?.comment ?? null);
  };
  return (
    <>
      {(["up", "down"] as const).map((rating) => (
        <button
          key={rating}
          type="button"
          className={mine?.rating === rating ? "tool is-pressed" : "tool"}
          aria-pressed={mine?.rating === rating}
          aria-label={words.feedback[rating]}
          title={words.feedback[rating]}
          onClick={() => press(rating)}
        >
          <Icon name={rating === "up" ? "thumbUp" : "thumbDown"} />
        </button>
      ))}
      {mine && !isCommenting && (
        <button type="button" className="link feedback-comment" onClick={() => onComment(true)}>
          {mine.comment ? words.feedback.editComment : words.feedback.addComment}
        </button>
      )}
    </>
  );
}

/** The comment on a rating. */
export function FeedbackForm({ threadId, turnId, onClose }: { threadId: string; turnId: string; onClose: () => void }) {
  const { ratings, notices } = useServices();
  const mine = useSelect((state) => state.feedback[turnId] ?? null);
  const [comment, setComment] = useState(mine?.comment ?? "");
  const [isSending, setIsSending] = useState(false);
  if (!mine) return null;
  const send = async () => {
    setIsSending(true);
    const isStored = await ratings.rate(threadId, turnId, mine.rating === "up" ? "up" : "down", comment.trim() || null);
    setIsSending(false);
    if (!isStored) return;
    notices.show(words.feedback.thanks);
    onClose();
  };
  return (
    <form
      className="feedback-form"
      onSubmit={(event) => {
        event.preventDefault();
        void send();
      }}
      onKeyDown={(event) => event.key === "Escape" && onClose()}
    >
      <label htmlFor={`comment-${turnId}`}>{words.feedback.comment}</label>
      <textarea id={`comment-${turnId}`} dir="auto" rows={2} maxLength={4_000} value={comment} onChange={(event) => setComment(event.target.value)} autoFocus />
      <div className="form-foot">
        <button type="button" className="button" onClick={onClose}>
          {words.feedback.noComment}
        </button>
        <button type="submit" className="button is-main" disabled={isSending}>
          {words.feedback.send}
        </button>
      </div>
    </form>
  );
}
