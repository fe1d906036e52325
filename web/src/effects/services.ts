/** Everything that the page can do, wired once. Components reach it through `ui/context`. */
import type { Store } from "../state/store";
import { Approvals } from "./approvals";
import { Branches } from "./branches";
import { Connection } from "./connection";
import { Conversations } from "./conversations";
import { Drafts } from "./drafts";
import { Ratings } from "./feedback";
import type { HostPage } from "./hostPage";
import { Navigation } from "./navigation";
import { Notices } from "./notices";
import { Notifications } from "./notifications";
import { Outbox } from "./outbox";
import { Session } from "./session";
import { TabChannel } from "./tabChannel";
import { Threads } from "./threads";
import { Uploads } from "./uploads";

export interface Services {
  readonly store: Store;
  /** The page around an embedded chat; null on the page itself. */
  readonly host: HostPage | null;
  readonly session: Session;
  readonly connection: Connection;
  readonly notices: Notices;
  readonly navigation: Navigation;
  readonly notifications: Notifications;
  readonly tabs: TabChannel;
  /** The list of conversations. */
  readonly conversations: Conversations;
  /** Conversations that are open, and the turn that is followed. */
  readonly threads: Threads;
  /** The text and the files of the next message of each thread. */
  readonly drafts: Drafts;
  readonly uploads: Uploads;
  readonly outbox: Outbox;
  readonly branches: Branches;
  /** Decisions about calls for which a turn waits. */
  readonly approvals: Approvals;
  readonly ratings: Ratings;
}

export function createServices(store: Store, host: HostPage | null = null): Services {
  const tabs = new TabChannel();
  const session = new Session(store, tabs);
  const connection = new Connection(store);
  const notices = new Notices(store, session);
  const navigation = new Navigation(store);
  const notifications = new Notifications(store, navigation);
  const drafts = new Drafts();
  const uploads = new Uploads({ store, notices });
  const conversations = new Conversations({ store, session, notices, navigation, tabs });
  const threads = new Threads({ store, session, connection, notices, navigation, conversations });
  const outbox = new Outbox({ store, session, connection, navigation, conversations, threads, drafts, uploads, tabs });
  const branches = new Branches({ store, connection, notices, threads, uploads, outbox, tabs });
  const approvals = new Approvals({ store, connection, session, threads, tabs });
  const ratings = new Ratings({ store, notices });
  return { store, host, session, connection, notices, navigation, notifications, tabs, conversations, threads, drafts, uploads, outbox, branches, approvals, ratings };
}
