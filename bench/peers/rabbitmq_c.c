/* The limit: publish with pipelined confirms, or consume with merged acks, as fast as rabbitmq-c can.
 *
 *     rabbitmq_c version
 *     rabbitmq_c publish URL QUEUE COUNT WINDOW    < body
 *     rabbitmq_c consume URL QUEUE COUNT PREFETCH
 *
 * Prints wall and CPU seconds of the work, connecting and closing not included.
 */

#include <amqp.h>
#include <amqp_framing.h>
#include <amqp_tcp_socket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { CHANNEL = 1, LARGEST_BODY = 1 << 20 };

static amqp_connection_state_t connection;
static double began, cpu_began;

static void die(const char *what) {
  fprintf(stderr, "%s\n", what);
  exit(1);
}

static void expect_ok(amqp_rpc_reply_t reply, const char *what) {
  if (reply.reply_type != AMQP_RESPONSE_NORMAL) die(what);
}

static double wall(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec / 1e9;
}

static double seconds(struct timeval time) { return time.tv_sec + time.tv_usec / 1e6; }

static double cpu(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

static void start_watch(void) {
  cpu_began = cpu();
  began = wall();
}

static void stop_watch(void) { printf("%.9f %.9f\n", wall() - began, cpu() - cpu_began); }

static void open_channel(char *url) {
  struct amqp_connection_info at;
  if (amqp_parse_url(url, &at) != AMQP_STATUS_OK) die("cannot read the URL");
  connection = amqp_new_connection();
  amqp_socket_t *socket = amqp_tcp_socket_new(connection);
  if (socket == NULL || amqp_socket_open(socket, at.host, at.port)) die("cannot connect");
  expect_ok(amqp_login(connection, at.vhost, 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, at.user, at.password),
            "cannot log in");
  amqp_channel_open(connection, CHANNEL);
  expect_ok(amqp_get_rpc_reply(connection), "cannot open a channel");
}

static void close_all(void) {
  expect_ok(amqp_channel_close(connection, CHANNEL, AMQP_REPLY_SUCCESS), "the channel did not close in order");
  expect_ok(amqp_connection_close(connection, AMQP_REPLY_SUCCESS), "the connection did not close in order");
  amqp_destroy_connection(connection);
}

/* Confirms may come for one message or for all up to it, and out of order: each is counted once. */
static unsigned char *is_confirmed;
static long all_confirmed_upto = 0;

static int confirm_one(long tag) {
  int first = !is_confirmed[tag];
  is_confirmed[tag] = 1;
  return first;
}

/* Reads one frame; returns how many messages it confirms. */
static long read_confirm(void) {
  amqp_frame_t frame;
  if (amqp_simple_wait_frame(connection, &frame) != AMQP_STATUS_OK) die("connection lost");
  if (frame.frame_type != AMQP_FRAME_METHOD || frame.payload.method.id != AMQP_BASIC_ACK_METHOD)
    die("a message was returned or refused");
  amqp_basic_ack_t *ack = frame.payload.method.decoded;
  if (!ack->multiple) return confirm_one(ack->delivery_tag);
  long newly = 0;
  while (all_confirmed_upto < (long)ack->delivery_tag) newly += confirm_one(++all_confirmed_upto);
  return newly;
}

static void publish(amqp_bytes_t queue, amqp_bytes_t body, long count, long window) {
  amqp_basic_properties_t json;
  memset(&json, 0, sizeof json);
  json._flags = AMQP_BASIC_CONTENT_TYPE_FLAG | AMQP_BASIC_DELIVERY_MODE_FLAG;
  json.content_type = amqp_cstring_bytes("application/json");
  json.delivery_mode = AMQP_DELIVERY_PERSISTENT;
  amqp_confirm_select(connection, CHANNEL);
  expect_ok(amqp_get_rpc_reply(connection), "no confirms");

  long sent = 0, confirmed = 0;
  if ((is_confirmed = calloc(count + 1, 1)) == NULL) die("no memory");
  start_watch();
  while (confirmed < count) {
    for (; sent < count && sent - confirmed < window; sent++)
      if (amqp_basic_publish(connection, CHANNEL, amqp_empty_bytes, queue, 1, 0, &json, body) != AMQP_STATUS_OK)
        die("cannot publish");
    do confirmed += read_confirm();
    while (amqp_frames_enqueued(connection) || amqp_data_in_buffer(connection));
    amqp_maybe_release_buffers(connection);
  }
  stop_watch();
}

static void consume(amqp_bytes_t queue, long count, long prefetch) {
  long merged = prefetch > 4 ? prefetch / 4 : 1;
  amqp_basic_qos(connection, CHANNEL, 0, prefetch, 0);
  expect_ok(amqp_get_rpc_reply(connection), "no prefetch");

  start_watch();
  amqp_basic_consume(connection, CHANNEL, queue, amqp_empty_bytes, 0, 0, 0, amqp_empty_table);
  expect_ok(amqp_get_rpc_reply(connection), "cannot consume");
  for (long handled = 1; handled <= count; handled++) {
    amqp_envelope_t envelope;
    amqp_maybe_release_buffers(connection);
    expect_ok(amqp_consume_message(connection, &envelope, NULL, 0), "no message");
    if (handled % merged == 0 || handled == count)
      if (amqp_basic_ack(connection, CHANNEL, envelope.delivery_tag, 1) != AMQP_STATUS_OK) die("cannot acknowledge");
    amqp_destroy_envelope(&envelope);
  }
  stop_watch();
}

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "version") == 0) {
    printf("%s\n", amqp_version());
    return 0;
  }
  if (argc != 6) die("usage: rabbitmq_c publish|consume URL QUEUE COUNT WINDOW");
  amqp_bytes_t queue = amqp_cstring_bytes(argv[3]);
  long count = atol(argv[4]), in_flight = atol(argv[5]);
  open_channel(argv[2]);
  if (strcmp(argv[1], "publish") == 0) {
    static char body[LARGEST_BODY];
    size_t size = fread(body, 1, sizeof body, stdin);
    publish(queue, (amqp_bytes_t){size, body}, count, in_flight);
  } else {
    consume(queue, count, in_flight);
  }
  close_all();
  return 0;
}
